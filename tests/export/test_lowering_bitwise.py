"""Operations on the bits of integers give XLA's numbers everywhere."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from lowered import assert_same_everywhere

NARROW = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]
WIDE = ["int64", "uint64"]


def values_of(dtype):
    """Zero, one, both ends of the range, single bits and random bits; with amounts to shift by."""
    limits = np.iinfo(dtype)
    width = limits.bits
    random = np.random.default_rng(width).integers(limits.min, limits.max, 20, dtype, endpoint=True)
    special = np.array([0, 1, 2, limits.max, limits.min, limits.max // 2, limits.max - 1], dtype)
    x = np.concatenate([special, random, special])
    usual = (np.arange(len(x)) % (width + 2)).astype(dtype)
    negative_or_huge = -1 if limits.min < 0 else limits.max
    y = np.concatenate([usual[:-3], np.array([width - 1, width, negative_or_huge], dtype)])
    return {"x": x[None], "y": y[None]}


def bit_operations(o):
    x, y = o["x"], o["y"]
    return {
        "and": x & y,
        "arithmetic": lax.shift_right_arithmetic(x, y),
        "clz": lax.clz(x),
        "left": lax.shift_left(x, y),
        "logical": lax.shift_right_logical(x, y),
        "not": ~x,
        "or": x | y,
        "population": lax.population_count(x),
        "xor": x ^ y,
    }


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("dtype", NARROW)
def test_bits_of_every_integer(dtype, batch_size):
    given = values_of(dtype)
    outputs = assert_same_everywhere(bit_operations, given, atol=0, rtol=0, batch_size=batch_size)
    by_name = dict(zip(sorted(bit_operations(given)), outputs, strict=True))
    assert by_name["clz"][0, :2].tolist() == [np.iinfo(dtype).bits, np.iinfo(dtype).bits - 1]
    assert by_name["population"][0, :3].tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", WIDE)
def test_bits_of_64_bit_integers(dtype):
    with jax.enable_x64(True):
        assert_same_everywhere(bit_operations, values_of(dtype), atol=0, rtol=0)


def test_a_shift_by_the_width_or_more_leaves_zeros_or_copies_of_the_sign():
    given = {
        "x": np.array([[-5, 5, -5, 5, -5]], np.int32),
        "y": np.array([[32, 32, -1, 100, 31]], np.int32),
    }
    left, right = assert_same_everywhere(
        lambda o: {
            "a": lax.shift_left(o["x"], o["y"]),
            "b": lax.shift_right_arithmetic(o["x"], o["y"]),
        },
        given,
        atol=0,
        rtol=0,
    )
    assert left.tolist() == [[0, 0, 0, 0, -(2**31)]] and right.tolist() == [[-1, 0, -1, 0, -1]]
