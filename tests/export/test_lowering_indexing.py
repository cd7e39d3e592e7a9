"""Reading and writing at indices give what JAX gives, inside and outside the bounds."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax import lax
from lowered import assert_same_everywhere

ROWS = 5
LIMITS = np.iinfo(np.int32)
GENERATOR = np.random.default_rng(0)
OBSERVATION = {
    "x": GENERATOR.normal(size=(ROWS, 4, 6)).astype(np.float32),
    "i": np.array([0, 5, 6, -1, LIMITS.max], np.int32),
    "j": np.array([[0, 3, 0], [4, -1, 3], [LIMITS.min, 1, 1], [2, 2, -5], [3, -4, 9]], np.int32),
    "n": GENERATOR.integers(-100, 100, (ROWS, 4, 6)).astype(np.int32),
}
OBSERVATION["x"][1, 2] = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e38]


def wild(o):
    """As many places as there are in four rows, most of them outside; the batch does not count."""
    return jp.concatenate([o["j"][row] for row in (0, 1, 2, 4)])


GATHER = {
    "slices_at_rows": lambda o: jax.vmap(
        lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)),
    )(o["x"], o["i"]),
    "two_axes_of_one_row": lambda o: o["x"][:, o["j"][0], o["j"][1]],
    "split_by_a_slice": lambda o: o["x"][o["i"], :, o["i"]],
    "index_between": lambda o: o["x"][:, o["j"][1], None, 1:3],
    "per_row_vector": lambda o: jax.vmap(lambda x, j: x[j])(o["x"], o["j"]),
    "per_row_column": lambda o: jax.vmap(lambda x, j: x[:, j])(o["x"], o["j"]),
    "along_the_batch": lambda o: o["x"][o["i"]],
    "reversed_rows": lambda o: o["x"][jp.arange(o["x"].shape[0])[::-1], 1],
    "batch_in_the_middle": lambda o: jp.swapaxes(
        jax.vmap(lambda x, j: x[j], in_axes=(1, 0), out_axes=1)(jp.swapaxes(o["x"], 0, 1), o["j"]),
        0,
        1,
    ),
    "take_along_axis": lambda o: jp.take_along_axis(o["x"], o["j"][:, :, None], axis=1),
    "take_along_last": lambda o: jp.take_along_axis(o["x"], o["j"][:, None], axis=2),
    "clip": lambda o: o["x"].at[:, wild(o)].get(mode="clip"),
    "fill": lambda o: o["x"].at[:, wild(o)].get(mode="fill", fill_value=-7.0),
    "fill_nan": lambda o: o["x"].at[:, :, wild(o)].get(mode="fill"),
    "fill_integer": lambda o: o["n"].at[:, wild(o)].get(mode="fill"),
    "fill_bool": lambda o: (o["n"] > 0).at[:, wild(o)].get(mode="fill"),
    "promise": lambda o: o["x"].at[:, jp.clip(wild(o), 0, 3)].get(mode="promise_in_bounds"),
    "unsigned": lambda o: o["x"].at[:, wild(o).astype(jp.uint32)].get(mode="clip"),
    "narrow": lambda o: o["x"].at[:, wild(o).astype(jp.int8)].get(mode="clip"),
    "window": lambda o: lax.gather(
        o["x"],
        o["j"][:, :2],
        lax.GatherDimensionNumbers(
            offset_dims=(0, 2), collapsed_slice_dims=(0,), start_index_map=(0, 2)
        ),
        slice_sizes=(1, 4, 2),
        mode="clip",
    ),
}


@pytest.mark.parametrize("batch_size", [None, ROWS])
def test_reading_at_indices(batch_size):
    assert_same_everywhere(
        lambda o: {name: read(o) for name, read in GATHER.items() if name != "window"},
        OBSERVATION,
        batch_size=batch_size,
        atol=0,
        rtol=0,
    )


def test_reading_windows_whose_axes_lie_anywhere():
    # The first axis of the output is not the batch, so it is put back by a transposition.
    assert_same_everywhere(
        lambda o: jp.swapaxes(GATHER["window"](o), 0, 1), OBSERVATION, atol=0, rtol=0
    )


def per_row(write):
    return lambda o: jax.vmap(write)(o["x"], o["i"], o["j"])


SCATTER = {
    "set": lambda o: o["x"].at[:, o["j"][1]].set(3.5),
    "set_one": lambda o: o["x"].at[:, o["i"][0], 1:3].set(2.0),
    "set_outside": lambda o: o["x"].at[:, o["i"][2]].set(2.0),
    "set_static": lambda o: o["x"].at[:, 2, jp.array([0, 5])].set(o["x"][:, 0, :2]),
    "set_rows": lambda o: o["x"].at[o["i"]].set(1.0),
    "set_per_row": per_row(lambda x, i, j: x.at[i].set(9.0)),
    "set_per_row_column": per_row(lambda x, i, j: x.at[:, j].set(x[:, ::2])),
    "set_clip": per_row(lambda x, i, j: x.at[j, i].set(jp.arange(3.0), mode="clip")),
    "set_promise": per_row(lambda x, i, j: x.at[i % 4].set(4.0, mode="promise_in_bounds")),
    "slice_per_row": per_row(lambda x, i, j: lax.dynamic_update_slice(x, x[:2, :3] * 2.0, (i, i))),
    "last_of_duplicates": lambda o: o["x"].at[:, jp.array([1, 1, 1])].set(o["x"][:, :3]),
    "last_of_computed_duplicates": per_row(lambda x, i, j: x.at[j].set(x[:3])),
    "add": per_row(lambda x, i, j: x.at[j].add(x[:3])),
    "add_one": lambda o: o["x"].at[:, o["i"][0], 1:3].add(2.0),
    "subtract": per_row(lambda x, i, j: x.at[j].subtract(x[:3])),
    "multiply": per_row(lambda x, i, j: x.at[j].multiply(x[:3])),
    "divide": lambda o: o["x"].at[:, 1].divide(3.0),
    "power": lambda o: o["x"].at[:, 1].power(2.0),
    "min": per_row(lambda x, i, j: x.at[j].min(x[1:4])),
    "max": per_row(lambda x, i, j: x.at[j].max(x[1:4])),
    "apply": per_row(lambda x, i, j: x.at[j].apply(jp.cos)),
    "histogram": lambda o: jax.vmap(lambda j: jp.bincount(jp.clip(j, 0), length=5))(o["j"]),
    "segments": lambda o: jax.ops.segment_sum(o["x"], jp.clip(o["i"], 0, 2), num_segments=3)[None],
}


@pytest.mark.parametrize("batch_size", [None, ROWS])
def test_writing_at_indices(batch_size):
    tables = {name: write for name, write in SCATTER.items() if name != "segments"}
    assert_same_everywhere(
        lambda o: {name: write(o) for name, write in tables.items()},
        OBSERVATION,
        batch_size=batch_size,
        atol=0,
        rtol=2e-6,
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"])
def test_writing_integers_and_bools_at_indices(dtype):
    observation = {
        "n": GENERATOR.integers(0, 2 if dtype == "bool" else 120, (4, 6)).astype(dtype),
        "v": GENERATOR.integers(0, 2 if dtype == "bool" else 120, (4, 3)).astype(dtype),
        "j": np.array([[0, 3, 0], [4, -1, 5], [7, 1, 1], [2, 2, -9]], np.int32),
    }

    def write(n, v, j):
        outputs = {"set": n.at[j].set(v), "min": n.at[j].min(v), "max": n.at[j].max(v)}
        if dtype != "bool":
            outputs |= {"add": n.at[j].add(v), "multiply": n.at[j].multiply(v)}
        return outputs

    assert_same_everywhere(
        lambda o: jax.vmap(write)(o["n"], o["v"], o["j"]), observation, atol=0, rtol=0
    )


def test_the_last_of_many_writes_to_one_place_wins():
    """Enough of them that a runtime which shares the work among threads would mix them up."""
    values = np.arange(4 * 5000, dtype=np.float32).reshape(4, 5000)
    places = np.tile(np.arange(5000, dtype=np.int32) % 3, (4, 1))
    outputs = assert_same_everywhere(
        lambda o: jax.vmap(lambda v, p: jp.zeros(3).at[p].set(v))(o["v"], o["p"]),
        {"v": values, "p": places},
        atol=0,
        rtol=0,
    )
    assert outputs[0][0].tolist() == [4998.0, 4999.0, 4997.0]


def test_a_window_that_reaches_outside_is_left_out_as_a_whole():
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(1,),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(0,),
    )
    x = np.zeros((1, 5), np.float32)

    def write(x):
        starts = jp.array([[0], [3], [-1]])
        updates = jp.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
        return jax.vmap(lambda row: lax.scatter(row, starts, updates, numbers))(x)

    outputs = assert_same_everywhere(write, x + 0.0, atol=0, rtol=0)
    assert outputs[0].tolist() == [[1, 1, 1, 0, 0]]


def test_indices_and_sums_of_uint64():
    top = np.iinfo(np.uint64).max
    with jax.enable_x64(True):
        given = {
            "i": np.array([0, 2, 3, top, 2**63], np.uint64),
            "x": np.array([[1, top, 2**63], [0, 5, top - 1], [7, 8, 9]], np.uint64)[
                [0, 1, 2, 0, 1]
            ],
        }
        assert_same_everywhere(
            lambda o: {
                "clip": o["x"].at[:, o["i"][:3]].get(mode="clip"),
                "wild": o["x"].at[:, o["i"][3:]].get(mode="clip"),
                "fill": o["x"].at[:, o["i"][3:]].get(mode="fill"),
                "add": o["x"].at[:, jp.array([0, 0, 2])].add(o["x"]),
                "multiply": o["x"].at[:, jp.array([0, 0, 2])].multiply(o["x"]),
                "min": o["x"].at[:, jp.array([0, 0, 2])].min(o["x"]),
                "max": o["x"].at[:, jp.array([0, 0, 2])].max(o["x"]),
            },
            given,
            atol=0,
            rtol=0,
            batch_size=5,
        )
