"""Slices, padding and shifts give what JAX gives, also where the batch decides a bound."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax import lax
from lowered import assert_same_everywhere

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32) * 2
X[0, 1], X[1, 2], X[2, 0], X[2, 1] = np.nan, np.inf, -np.inf, -0.0
LIMITS = np.iinfo(np.int32)
START = np.array([-9, 0, 2, 5, LIMITS.max], np.int32)

PADDING = {
    "edge": lambda x: jp.pad(x, ((0, 0), (2, 3)), mode="edge"),
    "edge_of_the_batch": lambda x: jp.pad(x, ((1, 1), (2, 3)), mode="edge")[1:-1],
    "wrap": lambda x: jp.pad(x, ((0, 0), (2, 3)), mode="wrap"),
    "reflect": lambda x: jp.pad(x, ((0, 0), (2, 3)), mode="reflect"),
    "interior": lambda x: lax.pad(x, jp.float32(7), ((0, 0, 0), (0, 0, 2))),
    "interior_and_cut": lambda x: lax.pad(x, jp.float32(7), ((0, 0, 0), (-2, 3, 2))),
    "interior_of_the_batch": lambda x: lax.pad(x, jp.float32(7), ((0, 0, 1), (1, -2, 1)))[::2],
    "cut_more_than_there_is": lambda x: lax.pad(x, jp.float32(7), ((0, 0, 0), (-8, 9, 0))),
    "computed_value": lambda x: lax.pad(x, x[0, 0], ((0, 0, 0), (1, 1, 0))),
    "infinity": lambda x: lax.pad(x, jp.float32(-np.inf), ((0, 0, 0), (1, 1, 1))),
    "integers": lambda x: lax.pad(
        jp.isnan(x).astype(jp.int32), jp.int32(LIMITS.min), ((0, 0, 0), (1, -1, 1))
    ),
    "bools": lambda x: lax.pad(x > 0.0, jp.bool_(True), ((0, 0, 0), (1, -1, 1))),
    "bytes": lambda x: lax.pad((x > 0.0).astype(jp.uint8), jp.uint8(200), ((0, 0, 0), (1, 1, 0))),
}

MOVING = {
    "roll": lambda x: jp.roll(x, 2, axis=1),
    "roll_back": lambda x: jp.roll(x, -1, axis=1),
    "roll_the_batch": lambda x: jp.roll(x, 1, axis=0),
    "roll_both": lambda x: jp.roll(x, (1, -2), axis=(0, 1)),
    "reversed": lambda x: x[:, ::-1],
    "reversed_batch": lambda x: x[::-1],
    "reversed_both": lambda x: lax.rev(x, (0, 1)),
    "reversed_integers": lambda x: jp.isnan(x).astype(jp.int32)[:, ::-1],
    "reversed_bools": lambda x: (x > 0.0)[:, ::-1],
    "reversed_bytes": lambda x: (x > 0.0).astype(jp.uint8)[:, ::-1],
    "split": lambda x: jp.split(x, [1, 4], axis=1),
    "last_rows_first": lambda x: jp.concatenate([x[x.shape[0] - 2 :], x[:-2]]),
    "strided": lambda x: x[:, 1:-1:2],
    "flat": lambda x: x.reshape(-1)[: x.shape[0]],
    "folded": lambda x: x.reshape(x.shape[0], 2, 3).swapaxes(1, 2).reshape(x.shape[0], 6),
    "scalar_clamp": lambda x: lax.clamp(jp.float32(-1), x, jp.float32(1)),
    "clamp": lambda x: lax.clamp(-x * x, x, x * x),
    "which": lambda x: lax.select_n(
        (jp.abs(jp.nan_to_num(x)).astype(jp.int32)) % 4, x, x * 2.0, x * 3.0, x * 4.0
    ),
}


# JAX takes b - 2 and shifts modulo b only where it knows b.
NEED_THE_BATCH = ("roll_the_batch", "roll_both", "last_rows_first")


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("table", [PADDING, MOVING], ids=["padding", "moving"])
def test_padding_and_moving(table, batch_size):
    unknown = NEED_THE_BATCH if batch_size is None else ()
    assert_same_everywhere(
        lambda x: {name: move(x) for name, move in table.items() if name not in unknown},
        X,
        batch_size=batch_size,
        atol=0,
        rtol=0,
    )


WINDOWS = {
    "read_two_axes": lambda o: jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (3,)))(
        o["x"], o["i"]
    ),
    "read_shared": lambda o: lax.dynamic_slice(
        o["x"], (o["i"][0], o["i"][2]), (o["x"].shape[0], 3)
    ),
    "write_two_axes": lambda o: lax.dynamic_update_slice(
        o["x"], jp.full((1, 3), 9.0), (o["i"][2], o["i"][2])
    ),
    "write_last": lambda o: lax.dynamic_update_slice(
        o["x"], jp.full((1, 3), 9.0), (o["i"][3] * 0 + 99, o["i"][0])
    ),
    "write_per_row": lambda o: jax.vmap(
        lambda x, i: lax.dynamic_update_slice(x, jp.arange(3.0), (i,))
    )(o["x"], o["i"]),
    "one_per_row": lambda o: jax.vmap(lambda x, i: lax.dynamic_index_in_dim(x, i, keepdims=False))(
        o["x"], o["i"]
    ),
    "roll_computed": lambda o: jp.roll(o["x"], o["i"][2], axis=1),
    "unsigned_start": lambda o: lax.dynamic_slice(
        o["x"], (jp.uint32(0), o["i"][0].astype(jp.uint32)), (o["x"].shape[0], 3)
    ),
    "bools": lambda o: lax.dynamic_update_slice(
        o["x"] > 0.0, jp.ones((1, 3), bool), (o["i"][2], o["i"][2])
    ),
}


@pytest.mark.parametrize("batch_size", [None, 5])
def test_windows_whose_start_is_computed(batch_size):
    assert_same_everywhere(
        lambda o: {name: move(o) for name, move in WINDOWS.items()},
        {"x": X, "i": START},
        batch_size=batch_size,
        atol=0,
        rtol=0,
    )


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32"]
)
def test_counting_in_every_dtype(dtype):
    outputs = assert_same_everywhere(
        lambda x: {"count": lax.broadcasted_iota(dtype, (x.shape[0], 200), 1), "x": x},
        np.zeros((2, 3), np.float32),
        atol=0,
        rtol=0,
    )
    assert outputs[0][1, :3].tolist() == [0, 1, 2] and outputs[0].dtype == dtype
