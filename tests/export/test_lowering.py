"""The rules give what JAX gives, for what the library, Flax NNX and JAX's activations produce."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from lowered import assert_same_everywhere

ORDINARY = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32) * 2
EXTREME = np.array(
    [[0.0, -0.0, 1e-30, -1e-30, 1e-7, -1e-7], [1e3, -1e3, 40.0, -40.0, 88.0, -88.0]], np.float32
)

ACTIVATIONS = [
    "relu", "relu6", "sigmoid", "softplus", "soft_sign", "silu", "swish", "log_sigmoid",
    "leaky_relu", "hard_sigmoid", "hard_swish", "hard_silu", "hard_tanh", "elu", "celu", "selu",
    "gelu", "glu", "squareplus", "mish", "softmax", "log_softmax", "standardize", "tanh",
    "identity", "sparse_plus", "sparse_sigmoid", "logsumexp", "one_hot",
]  # fmt: skip


def activations():
    found = {}
    for name in ACTIVATIONS:
        function = getattr(jax.nn, name, None) or getattr(nnx, name)
        found[name] = function
        if hasattr(nnx, name) and getattr(nnx, name) is not function:
            found[f"nnx_{name}"] = getattr(nnx, name)
    found["gelu_exact"] = lambda x: jax.nn.gelu(x, approximate=False)
    found["one_hot"] = lambda x: jax.nn.one_hot(jp.argmax(x, axis=-1), 6)
    found["logsumexp"] = lambda x: jax.nn.logsumexp(x, axis=-1)
    return found


@pytest.mark.parametrize("values", [ORDINARY, EXTREME], ids=["ordinary", "extreme"])
def test_every_activation(values):
    table = activations()
    if values is EXTREME:
        # Normalizing rows of such spread subtracts equal numbers; nothing is left to compare.
        table.pop("standardize")
    outputs = assert_same_everywhere(
        lambda x: {name: f(x) for name, f in table.items()}, values, atol=1e-6, rtol=5e-6
    )
    assert len(outputs) == len(table) >= 28


UNARY = [
    "abs", "sign", "floor", "ceil", "exp", "expm1", "log", "log1p", "sqrt", "square", "cbrt",
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "arcsinh", "arctanh",
    "tanh", "isfinite", "isnan", "isinf", "round", "trunc", "exp2", "reciprocal",
]  # fmt: skip


@pytest.mark.parametrize("values", [ORDINARY, EXTREME], ids=["ordinary", "extreme"])
def test_unary_operations_also_outside_their_domain(values):
    outputs = assert_same_everywhere(
        lambda x: {name: getattr(jp, name)(x) for name in UNARY}, values, atol=1e-6, rtol=2e-5
    )
    assert len(outputs) == len(UNARY)


def test_small_arguments_keep_their_relative_precision():
    tiny = np.array([[1e-12, -1e-12, 3e-8, 1e-5, -2e-4, 1e-30]], np.float32)
    assert_same_everywhere(
        lambda x: {"log1p": jp.log1p(x), "expm1": jp.expm1(x)}, tiny, atol=0, rtol=1e-6
    )


def test_special_values_follow_jax():
    special = np.array([[np.inf, -np.inf, np.nan, 0.0, 1.0, -1.0]], np.float32)
    assert_same_everywhere(
        lambda x: {
            "isfinite": jp.isfinite(x),
            "isnan": jp.isnan(x),
            "log1p": jp.log1p(x),
            "exp": jp.exp(x),
            "max": jp.maximum(x, jp.zeros_like(x)),
            "softplus": jax.nn.softplus(x),
            "tanh": jp.tanh(x),
            "where": jp.where(jp.isnan(x), jp.ones_like(x), x),
        },
        special,
    )


def test_integer_division_rounds_as_jax_does_for_negative_operands():
    a = np.array([[-7, 7, -7, 7, 0, -1, -8, 5]], np.int32)
    b = np.array([[3, 3, -3, -3, 5, 3, 4, 0]], np.int32)
    outputs = assert_same_everywhere(
        lambda o: {
            "rem": lax.rem(o["a"], o["b"]),
            "div": lax.div(o["a"], o["b"]),
            "mod": o["a"] % 3,
            "floordiv": o["a"] // 3,
            "mod_negative": o["a"] % -3,
        },
        {"a": a, "b": b},
        atol=0,
        rtol=0,
    )
    by_name = dict(zip(["div", "floordiv", "mod", "mod_negative", "rem"], outputs, strict=True))
    assert by_name["div"].tolist() == [[-2, 2, 2, -2, 0, 0, -2, -1]]
    assert by_name["rem"].tolist() == [[-1, 1, -1, 1, 0, -1, 0, 5]]
    assert by_name["mod"].tolist() == [[2, 1, 2, 1, 0, 2, 1, 2]]


def test_comparisons_logic_and_selection():
    assert_same_everywhere(
        lambda x: {
            "lt": x < 0.1,
            "ge": x >= 0.1,
            "eq": x == x,
            "xor": (x > 0) ^ (x < 1),
            "all": jp.all(x > -9, axis=-1),
            "any": jp.any(x > 2, axis=-1),
            "clip": jp.clip(x, -0.5, 0.5),
            "select": lax.select_n(
                jp.clip(jp.round(jp.abs(x)), 0, 2).astype(jp.int32), x, x * 10.0, x * 100.0
            ),
        },
        ORDINARY,
    )


def test_reductions_and_cumulative_operations():
    assert_same_everywhere(
        lambda x: {
            "sum": x.sum(-1),
            "max": x.max(-1),
            "min": x.min(-1),
            "prod": x.prod(-1),
            "mean": x.mean(-1),
            "std": x.std(-1),
            "argmax": jp.argmax(x, axis=-1),
            "argmin": jp.argmin(x, axis=-1),
            "cumsum": jp.cumsum(x, axis=-1),
            "cumprod": jp.cumprod(x, axis=-1),
            "cummax": lax.cummax(x, axis=1),
            "reverse": lax.cumsum(x, axis=1, reverse=True),
        },
        ORDINARY,
        rtol=1e-5,
    )


def test_shapes_slices_and_indexing():
    index = jp.array([4, 0, -1])
    assert_same_everywhere(
        lambda x: {
            "head": x[:, :-1],
            "last": x[:, -1],
            "strided": x[:, ::2],
            "reversed": x[:, ::-1],
            "picked": x[:, index],
            "taken": jp.take(x, index, axis=1),
            "rolled": jp.roll(x, 2, axis=-1),
            "stacked": jp.stack([x, -x], axis=1),
            "pad": jp.pad(x, ((0, 0), (1, 2)), constant_values=3.0),
            "cut": lax.pad(x, jp.zeros((), x.dtype), ((0, 0, 0), (-1, -2, 0))),
            "outer": x[:, :, None] * x[:, None, :],
            "transposed": jp.swapaxes(x[:, :, None] * x[:, None, :2], 1, 2),
            "flat": (x[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1),
            "tiled": jp.tile(x, (1, 3)),
            "repeat": jp.repeat(x, 2, axis=1),
            "row": jp.arange(x.shape[0]),
            "zeros": jp.zeros((x.shape[0], 3)),
        },
        ORDINARY,
    )


def test_an_index_that_is_computed_follows_jax_out_of_bounds():
    indices = np.array([0, 5, 6, -1, -6, -9], np.int32)
    observation = {"x": np.tile(ORDINARY[:1], (6, 1)), "i": indices}

    def look_up(o):
        rows = jp.arange(o["x"].shape[0])
        return {
            "row": o["x"][rows, o["i"]],
            "clip": jp.take(jp.arange(4.0), o["i"], mode="clip"),
            "fill": jp.take(jp.arange(4.0), o["i"], mode="fill", fill_value=-3.0),
            "along": jp.take_along_axis(o["x"], jp.clip(o["i"], 0, 5)[:, None], axis=1),
            "table": jp.linspace(0, 1, 12).reshape(4, 3)[o["i"]],
        }

    assert_same_everywhere(look_up, observation)


def test_dynamic_slices_are_clamped():
    observation = {"x": ORDINARY, "i": np.full(5, 4, np.int32)}

    def window(o):
        start = o["i"][0]
        update = jp.full((o["x"].shape[0], 2), 7.0)
        return {
            "read": lax.dynamic_slice_in_dim(o["x"], start + 1, 3, axis=1),
            "write": lax.dynamic_update_slice_in_dim(o["x"], update, start + 1, axis=1),
        }

    assert_same_everywhere(window, observation)


def test_products_of_any_arrangement():
    observation = {
        "a": np.random.default_rng(1).normal(size=(3, 4, 5)).astype(np.float32),
        "b": np.random.default_rng(2).normal(size=(3, 5, 2)).astype(np.float32),
    }
    weights = jp.asarray(np.random.default_rng(3).normal(size=(2, 5, 4)), jp.float32)
    assert_same_everywhere(
        lambda o: {
            "batched": o["a"] @ o["b"],
            "left": jp.einsum("bij,kj->bik", o["a"], jp.ones((7, 5))),
            "two_axes": jp.einsum("bij,kji->bk", o["a"], weights),
            "outer": jp.einsum("bi,bj->bij", o["a"][:, :, 0], o["b"][:, 0]),
            "vector": o["a"] @ jp.arange(5.0),
            "inner": jp.sum(o["a"][:, 0] * o["a"][:, 1], axis=-1),
        },
        observation,
        atol=5e-6,
    )


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(lambda r: nnx.Conv(3, 6, (3,), rngs=r), id="conv1d"),
        pytest.param(
            lambda r: nnx.Conv(3, 6, (3,), strides=2, padding="VALID", rngs=r), id="strides"
        ),
        pytest.param(
            lambda r: nnx.Conv(3, 6, (3,), kernel_dilation=2, padding="CAUSAL", rngs=r), id="causal"
        ),
        pytest.param(lambda r: nnx.Conv(3, 6, (3,), feature_group_count=3, rngs=r), id="groups"),
    ],
)
def test_convolution_over_one_axis(layer):
    x = np.random.default_rng(0).normal(size=(2, 9, 3)).astype(np.float32)
    assert_same_everywhere(lambda conv, o: conv(o), x, modules=layer(nnx.Rngs(0)), atol=5e-6)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR"])
def test_convolution_over_two_axes(padding):
    x = np.random.default_rng(0).normal(size=(2, 8, 7, 3)).astype(np.float32)
    conv = nnx.Conv(3, 4, (3, 2), strides=(2, 1), padding=padding, rngs=nnx.Rngs(0))
    assert_same_everywhere(lambda conv, o: conv(o), x, modules=conv, atol=5e-6)


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.cells = nnx.List(
            [
                nnx.LSTMCell(6, 7, rngs=rngs),
                nnx.OptimizedLSTMCell(6, 7, rngs=rngs),
                nnx.GRUCell(6, 7, rngs=rngs),
                nnx.SimpleCell(6, 7, rngs=rngs),
            ]
        )
        self.norms = nnx.List([nnx.LayerNorm(7, rngs=rngs), nnx.RMSNorm(7, rngs=rngs)])


def test_recurrent_cells_and_norms_of_flax():
    def step(module, x):
        outputs = {}
        for index, cell in enumerate(module.cells):
            h = 0.1 * jp.tile(x[:, :1], (1, 7))
            carry = (h, 2 * h) if "LSTM" in type(cell).__name__ else h
            outputs[str(index)] = cell(carry, x)
        outputs["norms"] = [norm(outputs["0"][1]) for norm in module.norms]
        return outputs

    outputs = assert_same_everywhere(
        step, ORDINARY, modules=Recurrent(nnx.Rngs(0)), atol=5e-6, rtol=1e-5
    )
    assert len(outputs) == 3 + 3 + 2 + 2 + 2


def test_branches_and_loops():
    def program(x):
        positive = jp.sum(x) > 0
        looped, trail = lax.scan(lambda c, t: (c * 0.5 + t, c), x[:, 0], jp.swapaxes(x, 0, 1))
        long, _ = lax.scan(lambda c, _: (c * 0.9 + 0.1, None), x, None, length=40)
        counted = lax.fori_loop(0, 5, lambda i, c: c + x[:, 0] * i, jp.zeros_like(x[:, 0]))
        halved = lax.while_loop(lambda s: jp.max(jp.abs(s)) > 0.01, lambda s: s / 2.0, x)
        return {
            "cond": lax.cond(positive, lambda v: v + 1.0, lambda v: v * 2.0, x),
            "switch": lax.switch(jp.sum(x > 0), [jp.sin, jp.cos, jp.tanh], x),
            "looped": looped,
            "trail": trail.swapaxes(0, 1),
            "long": long,
            "counted": counted,
            "halved": halved,
        }

    assert_same_everywhere(program, ORDINARY, atol=5e-6)


def test_integer_and_bool_observations():
    observation = {
        "pixels": np.random.default_rng(0).integers(0, 256, (3, 4, 4)).astype(np.uint8),
        "mode": np.array([0, 2, 1], np.int32),
        "contact": np.array([[True, False]] * 3),
    }
    table = nnx.Embed(3, 5, rngs=nnx.Rngs(0))

    def mixed(embed, o):
        pixels = o["pixels"].astype(jp.float32) / 255.0
        force = jp.where(o["contact"], jp.ones(2), jp.zeros(2))
        flat = pixels.reshape(pixels.shape[0], -1)
        return jp.concatenate([flat, embed(o["mode"]), force], axis=-1)

    assert_same_everywhere(mixed, observation, modules=table)


def test_a_fixed_batch_gives_the_same_as_any():
    x = ORDINARY
    assert_same_everywhere(lambda x: jp.tanh(x @ jp.ones((6, 2))), x, batch_size=5)
