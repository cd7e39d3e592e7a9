"""Reductions and cumulative operations give what JAX gives, with NaN, infinities and integers."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax import lax
from lowered import assert_same_everywhere

from export import UnsupportedOperationError

X = np.random.default_rng(0).normal(size=(6, 7)).astype(np.float32) * 2
X[0, 1], X[0, 4], X[1, 2:5] = np.nan, np.inf, [np.inf, np.nan, -np.inf]
X[2, :4], X[3], X[4, :3], X[5, 5:] = [-0.0, 0.0, -0.0, 1.0], np.nan, -np.inf, [88.0, -100.0]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]

CUMULATIVE = ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]


def _both_ways(name):
    function = getattr(lax, name)
    return {
        name: lambda x: function(x, axis=1),
        f"{name}_reverse": lambda x: function(x, axis=1, reverse=True),
        f"{name}_inner": lambda x: function(x[:, :, None] * jp.array([1.0, -0.5]), axis=1),
        f"{name}_one": lambda x: function(x[:, :1], axis=1),
    }


@pytest.mark.parametrize("batch_size", [None, 6])
def test_cumulative_operations_on_floats(batch_size):
    table = {key: f for name in CUMULATIVE for key, f in _both_ways(name).items()}
    assert_same_everywhere(
        lambda x: {key: f(x) for key, f in table.items()}, X, batch_size=batch_size, rtol=1e-5
    )


def test_cumulative_operations_along_a_batch_of_known_size():
    assert_same_everywhere(
        lambda x: {name: getattr(lax, name)(x, axis=0) for name in CUMULATIVE},
        X,
        batch_size=6,
        rtol=1e-5,
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_cumulative_operations_on_integers_wrap_around(dtype):
    limits = np.iinfo(dtype)
    x = np.array([[100, 3, 120, limits.max, limits.min, 7], [1, 2, 3, 4, 5, 6]]).astype(dtype)
    assert_same_everywhere(
        lambda x: {name: getattr(lax, name)(x, axis=1) for name in CUMULATIVE[:4]},
        x,
        atol=0,
        rtol=0,
    )


EXTREMA = {
    "argmax": lambda x: jp.argmax(x, axis=1),
    "argmin": lambda x: jp.argmin(x, axis=1),
    "argmax_all": lambda x: jp.argmax(x) + jp.zeros(x.shape[0], jp.int32),
    "argmax_inner": lambda x: jp.argmax(x[:, None] * jp.array([[1.0], [-1.0]]), axis=1),
    "max": lambda x: jp.max(x, axis=1),
    "min": lambda x: jp.min(x, axis=1),
    "sum": lambda x: jp.sum(x, axis=1),
    "prod": lambda x: jp.prod(x, axis=1),
    "nanmax": lambda x: jp.nanmax(x, axis=1),
    "nansum": lambda x: jp.nansum(x, axis=1),
    "nanargmax": lambda x: jp.nanargmax(x, axis=1),
    "all": lambda x: jp.all(x > 0.0, axis=1),
    "any": lambda x: jp.any(x > 0.0, axis=1),
    "parity": lambda x: lax.reduce_xor(x > 0.0, axes=(1,)),
    "softmax": lambda x: jax.nn.softmax(jp.clip(x, -50.0, 50.0), axis=1),
}


@pytest.mark.parametrize("batch_size", [None, 6])
def test_extrema_of_rows_with_nan_and_infinities(batch_size):
    outputs = assert_same_everywhere(
        lambda x: {name: f(x) for name, f in EXTREMA.items()}, X, batch_size=batch_size, rtol=1e-5
    )
    assert outputs[sorted(EXTREMA).index("argmax")][:2].tolist() == [1, 3]


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_bitwise_reductions(dtype):
    x = np.array([[12, 10, 6, 3, 1], [7, 7, 7, 7, 7], [0, 1, 0, 1, 0], [3] * 5]).astype(dtype)
    if dtype != "bool":
        x[3, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    outputs = assert_same_everywhere(
        lambda x: {
            "and": lax.reduce_and(x, axes=(1,)),
            "or": lax.reduce_or(x, axes=(1,)),
            "xor": lax.reduce_xor(x, axes=(1,)),
        },
        x,
        atol=0,
        rtol=0,
    )
    if dtype != "bool":
        assert [y[:3].tolist() for y in outputs] == [[0, 7, 0], [15, 7, 1], [2, 7, 0]]


@pytest.mark.parametrize("batch_size", [None, 6])
def test_reductions_by_a_function_of_the_users(batch_size):
    def larger_magnitude(a, b):
        return jp.where(jp.abs(a) >= jp.abs(b), a, b)

    def best(a, b):
        first = a[0] >= b[0]
        return jp.where(first, a[0], b[0]), jp.where(first, a[1], b[1])

    def reduce(x):
        places = lax.broadcasted_iota(jp.int32, x.shape, 1)
        cube = x[:, :, None] * jp.array([1.0, -2.0, 0.5])
        return {
            "magnitude": lax.reduce(x, jp.float32(0), larger_magnitude, (1,)),
            "two_axes": lax.reduce(cube, jp.float32(0), larger_magnitude, (1, 2)),
            "pair": lax.reduce((x, places), (jp.float32(-9.0), jp.int32(-1)), best, (1,)),
        }

    assert_same_everywhere(reduce, np.nan_to_num(X, posinf=9.0, neginf=-8.0), batch_size=batch_size)


@pytest.mark.parametrize("operation", [lax.cumprod, lax.cummax, lax.cumlogsumexp])
def test_a_cumulative_operation_along_a_batch_of_any_size_is_refused(operation):
    with pytest.raises(UnsupportedOperationError, match="export with batch_size=N"):
        assert_same_everywhere(lambda x: operation(x, axis=0), X)
    assert_same_everywhere(
        lambda x: operation(x, axis=0),
        np.nan_to_num(X, posinf=9.0, neginf=-8.0),
        batch_size=6,
        rtol=1e-5,
    )
