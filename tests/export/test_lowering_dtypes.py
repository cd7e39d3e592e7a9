"""Integers, bools and conversions give the same numbers everywhere, or are refused."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from lowered import assert_same_everywhere, run_everywhere

from export import ExportError, UnsupportedOperationError
from export.lowering import RULES

INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_and_remainder_of_every_integer(dtype):
    x = np.array([[0, 1, 7, 100, 120, 5]]).astype(dtype)
    y = np.array([[3, 0, 2, 7, 11, 5]]).astype(dtype)
    outputs = assert_same_everywhere(
        lambda o: {"div": lax.div(o["x"], o["y"]), "rem": lax.rem(o["x"], o["y"])},
        {"x": x, "y": y},
        atol=0,
        rtol=0,
    )
    by_zero = -1 if dtype.startswith("int") else np.iinfo(dtype).max
    assert outputs[0].tolist() == [[0, by_zero, 3, 14, 10, 1]]
    assert outputs[1].tolist() == [[0, 1, 1, 2, 10, 0]]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_reductions_of_every_integer_wrap_around(dtype):
    x = np.array([[100, 120, 7], [1, 2, 3]]).astype(dtype)
    outputs = assert_same_everywhere(
        lambda x: {
            "argmax": jp.argmax(x, axis=-1),
            "max": x.max(-1),
            "min": x.min(-1),
            "sum": jp.sum(x, axis=-1, dtype=x.dtype),
            "within": jp.clip(jp.maximum(jp.minimum(x, x[:, ::-1]), x[:, :1]), x[:, 1:2], x[:, 2:]),
        },
        x,
        atol=0,
        rtol=0,
    )
    assert outputs[0].tolist() == [1, 2] and outputs[1].tolist() == [120, 3]
    assert outputs[3].tolist() == [int(np.array(227).astype(dtype)), 6]


def test_bools_are_ordered_and_searched():
    x = np.array([[True, False, True], [False, False, True], [False, False, False]])
    outputs = assert_same_everywhere(
        lambda x: {
            "argmax": jp.argmax(x, axis=-1),
            "max": x.max(-1),
            "maximum": jp.maximum(x, x[:, ::-1]),
            "min": x.min(-1),
            "minimum": jp.minimum(x, ~x[:, ::-1]),
        },
        x,
    )
    assert outputs[0].tolist() == [0, 2, 0] and outputs[1].tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_float_outside_an_integers_range_becomes_its_nearest_end(dtype):
    x = np.array(
        [
            [np.nan, np.inf, -np.inf, -5.7, 300.5, 3e9],
            [2147483520.0, 2147483648.0, -3e9, 0.9, 2, 0],
        ],
        np.float32,
    )
    outputs = assert_same_everywhere(lambda x: x.astype(dtype), x, atol=0, rtol=0)
    limits = np.iinfo(dtype)
    assert outputs[0][0, :4].tolist() == [0, limits.max, limits.min, max(-5, limits.min)]


def test_rounding_to_a_type_that_runtimes_have_and_to_no_other():
    x = np.array([[0.1, 1 / 3, 70000, 1e-8, -2.5, np.inf]], np.float32)
    assert_same_everywhere(
        lambda x: {
            "all": lax.reduce_precision(x, 8, 23) * 2.0,
            "bfloat16": lax.reduce_precision(x, 8, 7),
            "float16": lax.reduce_precision(x, 5, 10),
        },
        x,
        atol=0,
        rtol=0,
    )
    with pytest.raises(UnsupportedOperationError, match="6 of mantissa; float32 can be rounded to"):
        assert_same_everywhere(lambda x: lax.reduce_precision(x, 8, 6), x)


def test_a_conversion_to_fewer_bits_and_back_rounds():
    with jax.enable_x64(True):
        x = np.array([[2**24 + 1, 2**53 + 1, -(2**60) - 1, 7]])
        outputs = assert_same_everywhere(
            lambda o: {
                "float32": o["f"].astype(jp.float32).astype(jp.float64),
                "int32": o["i"].astype(jp.float32).astype(jp.int32),
                "int64": o["x"].astype(jp.float64).astype(jp.int64),
            },
            {"f": x + 0.5, "i": x[:, :1].astype(np.int32), "x": x},
            atol=0,
            rtol=0,
        )
    assert outputs[1].tolist() == [[2**24]] and outputs[2][0, 1] == 2**53


@pytest.mark.parametrize("dtype", [jp.float16, jp.bfloat16])
def test_a_conversion_to_half_precision_and_back_rounds(dtype):
    x = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    outputs = run_everywhere(lambda x: lax.optimization_barrier(x.astype(dtype)).astype(x.dtype), x)
    rounded = np.asarray(jp.asarray(x).astype(dtype).astype(jp.float32))
    for output, *_ in outputs:
        np.testing.assert_array_equal(output, rounded)


@pytest.mark.parametrize("dtype", [jp.float16, jp.bfloat16])
def test_one_operation_in_half_precision_gives_the_very_number_that_xla_gives(dtype):
    generator = np.random.default_rng(1)
    weights = jp.asarray(generator.normal(size=(16, 16)) / 4, dtype)

    def operations(o):
        x, y = o["x"].astype(dtype), o["y"].astype(dtype)
        results = [x + y, x - y, x * y, x / y, jp.sqrt(x), jp.tanh(x), jp.exp(x), jp.sin(y)]
        results += [jp.sum(x, -1), jp.mean(y, -1), y @ weights, jp.max(y, -1), -x, jp.abs(y)]
        # Without the barrier XLA leaves the last rounding out.
        return [lax.optimization_barrier(result).astype(jp.float32) for result in results]

    shape = (20, 16)
    assert_same_everywhere(
        operations,
        {
            "x": np.abs(generator.normal(size=shape)).astype(np.float32),
            "y": generator.normal(size=shape).astype(np.float32),
        },
        atol=0,
        rtol=0,
    )


@pytest.mark.parametrize("dtype", [jp.float16, jp.bfloat16])
def test_half_precision_weights_and_activations_stay_within_one_eps(dtype):
    # The roundings that XLA leaves out within a layer came to half an eps here.
    generator = np.random.default_rng(0)
    x = generator.normal(size=(5, 16)).astype(np.float32)
    weights = jp.asarray(generator.normal(size=(16, 16)) / 4, dtype)
    bound = float(jp.finfo(dtype).eps)

    def network(x):
        hidden = jp.tanh(x.astype(dtype) @ weights + weights[0])
        return (jax.nn.silu(hidden @ weights) @ weights).astype(jp.float32)

    assert_same_everywhere(network, x, atol=bound, rtol=bound)


def test_float16_goes_in_and_out_as_such():
    x = np.array([[0.1, 70, 6e-8, -2.5, np.inf, np.nan]], np.float16)
    outputs = assert_same_everywhere(lambda x: {"double": x + x, "same": x * x.dtype.type(1)}, x)
    assert outputs[0].dtype == np.float16


def test_float64_computes_in_float64():
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        x = generator.normal(size=(3, 4)) * 1e3
        weights = generator.normal(size=(4, 4))
        assert_same_everywhere(
            lambda x: {
                "dense": jp.tanh(x @ weights / 1e3),
                "exp": jp.exp(-jp.abs(x) / 1e2) + jp.log1p(jp.abs(x)),
                "mean": (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
                "where": jp.where(x > 0, x, jp.sqrt(-x)),
            },
            x,
            atol=1e-13,
            rtol=1e-13,
        )


@pytest.mark.parametrize("dtype", [*INTEGERS, "int64", "uint64"])
def test_arithmetic_and_order_of_every_integer(dtype):
    with jax.enable_x64(dtype.endswith("64")):
        limits = np.iinfo(dtype)
        x = np.array([[0, 1, limits.max, limits.min, 100, limits.max // 2 + 5]], dtype)
        y = np.array([[3, limits.max, limits.max, limits.max, 7, limits.min]], dtype)
        assert_same_everywhere(
            lambda o: {
                "abs": jp.abs(o["x"]),
                "add": o["x"] + o["y"],
                "clamp": lax.clamp(x.dtype.type(2), o["x"], x.dtype.type(limits.max // 3)),
                "div": lax.div(o["x"], o["y"]),
                "eq": o["x"] == o["y"],
                "ge": o["x"] >= o["y"],
                "lt": o["x"] < o["y"],
                "max": lax.max(o["x"], o["y"]),
                "min": lax.min(o["x"], o["y"]),
                "mul": o["x"] * o["y"],
                "neg": -o["x"],
                "power": lax.integer_pow(o["x"], 3),
                "rem": lax.rem(o["x"], o["y"]),
                "sign": lax.sign(o["x"]),
                "sub": o["x"] - o["y"],
            },
            {"x": x, "y": y},
            atol=0,
            rtol=0,
        )


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_large_integers_that_differ_by_one_are_told_apart(dtype):
    with jax.enable_x64(dtype.endswith("64")):
        end = np.iinfo(dtype).max
        x = np.array([[end, end - 1, end, 2**24]], dtype)
        y = np.array([[end - 1, end, end, 2**24 + 1]], dtype)
        outputs = assert_same_everywhere(
            lambda o: {
                "eq": o["x"] == o["y"],
                "ge": o["x"] >= o["y"],
                "gt": o["x"] > o["y"],
                "le": o["x"] <= o["y"],
                "lt": o["x"] < o["y"],
                "max": lax.max(o["x"], o["y"]),
            },
            {"x": x, "y": y},
            atol=0,
            rtol=0,
        )
    assert outputs[2].tolist() == [[True, False, False, False]]
    assert outputs[4].tolist() == [[False, True, False, True]]


def test_an_operation_that_onnxruntime_has_no_kernel_for_is_refused():
    with jax.enable_x64(True), pytest.raises(ExportError, match="cannot run the model.*Atan"):
        assert_same_everywhere(jp.arctan, np.ones((1, 3)))


def test_what_tensorflow_refuses_names_primitive_and_line(monkeypatch):
    monkeypatch.setitem(RULES._rules, "sign", (lambda *_: tf.sign(tf.constant("text")), True))
    with pytest.raises(UnsupportedOperationError, match="TensorFlow refuses it") as caught:
        assert_same_everywhere(lambda x: jp.sign(x), np.ones((1, 3), np.float32))
    assert caught.value.primitive == "sign" and "test_lowering_dtypes.py" in caught.value.source
