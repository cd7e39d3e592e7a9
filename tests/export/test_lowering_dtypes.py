"""Integers, bools and conversions give the same numbers everywhere, or are refused."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax import lax
from lowered import assert_same_everywhere

from export import ExportError, UnsupportedOperationError

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


def test_rounding_to_fewer_bits_is_refused_and_rounding_to_all_is_nothing():
    x = np.full((1, 3), 0.1, np.float32)
    assert_same_everywhere(lambda x: lax.reduce_precision(x, 8, 23) * 2.0, x)
    with pytest.raises(UnsupportedOperationError, match="7 of mantissa"):
        assert_same_everywhere(lambda x: lax.reduce_precision(x, 8, 7), x)


def test_bfloat16_is_refused_where_it_computes_but_not_as_a_constant():
    x, weights = np.full((1, 3), 0.1, np.float32), jp.asarray([1.5, 2.5, 3.5], jp.bfloat16)
    assert_same_everywhere(lambda x: x * weights.astype(jp.float32), x)
    with pytest.raises(UnsupportedOperationError, match="bfloat16"):
        assert_same_everywhere(lambda x: (x.astype(jp.bfloat16) * weights).astype(jp.float32), x)


def test_an_operation_that_onnxruntime_has_no_kernel_for_is_refused():
    with jax.enable_x64(True), pytest.raises(ExportError, match="cannot run the model.*Atan"):
        assert_same_everywhere(jp.arctan, np.ones((1, 3)))


def test_what_tensorflow_refuses_names_primitive_and_line():
    with pytest.raises(UnsupportedOperationError, match="TensorFlow refuses it") as caught:
        assert_same_everywhere(lambda x: jp.sign(x), np.ones((1, 3), np.uint8))
    assert caught.value.primitive == "sign" and "test_lowering_dtypes.py" in caught.value.source
