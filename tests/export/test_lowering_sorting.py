"""Sorting and what rests on it give what JAX gives: ties, NaN, signed zeros, integer limits."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax import lax
from lowered import assert_same_everywhere

from export import UnsupportedOperationError

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(6, 7)).astype(np.float32) * 2
X[0, 1], X[0, 4], X[1, 2:5] = np.nan, np.inf, [np.inf, np.nan, -np.inf]
X[2, :4], X[3], X[4, ::2] = [-0.0, 0.0, -0.0, 1.0], np.nan, 1.5
LIMITS = np.iinfo(np.int32)


def one_zero(x):
    """Without -0.0, which is as large as 0.0 in the rules' top_k and smaller in XLA's.

    Partition negates, and so gives XLA a NaN whose sign the rules do not see.
    """
    return jp.where(x == 0.0, 0.0, x)


SORTING = {
    "sort": lambda x: jp.sort(x, axis=1),
    "sort_down": lambda x: jp.sort(x, axis=1, descending=True),
    "sort_other_axis": lambda x: jp.sort(x[:, None, :] * jp.array([[1.0], [-1.0]]), axis=1),
    "argsort": lambda x: jp.argsort(x, axis=1),
    "argsort_down": lambda x: jp.argsort(x, axis=1, descending=True),
    "rank": lambda x: jp.argsort(jp.argsort(x, axis=1), axis=1),
    "carried_along": lambda x: lax.sort((x, -x, x * 2.0), dimension=1, num_keys=1),
    "two_keys": lambda x: lax.sort((jp.round(x), -x, x * 2.0), dimension=1, num_keys=2),
    "top": lambda x: lax.top_k(one_zero(x), 3),
    "top_other_axis": lambda x: lax.top_k(jp.swapaxes(one_zero(x), 0, 1), 2, axis=0),
    "top_of_all": lambda x: lax.top_k(one_zero(x), 7),
    "median": lambda x: jp.median(jp.nan_to_num(x), axis=1),
    "quantile": lambda x: jp.quantile(jp.clip(jp.nan_to_num(x), -9.0, 9.0), 0.3, axis=1),
    "bools": lambda x: jp.sort(x > 0.0, axis=1),
    "argsort_bools": lambda x: jp.argsort(x > 0.0, axis=1),
    "top_bools": lambda x: lax.top_k(x > 0.0, 3)[1],
    "lexsort": lambda x: jp.lexsort((x, jp.round(x)), axis=1),
    "partition": lambda x: jp.partition(one_zero(jp.nan_to_num(x)), 2, axis=1)[:, 2],
}


@pytest.mark.parametrize("batch_size", [None, 6])
def test_sorting_floats(batch_size):
    def sort(x):
        table = {name: f(x) for name, f in SORTING.items()}
        table["top_other_axis"] = [jp.swapaxes(y, 0, 1) for y in table["top_other_axis"]]
        return table

    assert_same_everywhere(sort, X, batch_size=batch_size, atol=0, rtol=1e-6)


def test_the_batch_is_sorted_too():
    assert_same_everywhere(
        lambda x: {"sort": jp.sort(x, axis=0), "argsort": jp.argsort(x, axis=0)}, X, atol=0, rtol=0
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_sorting_integers_up_to_their_limits(dtype):
    limits = np.iinfo(dtype)
    x = np.array([[limits.max, limits.min, 3, 0, 3, limits.max - 1, limits.min + 1]], dtype)
    outputs = assert_same_everywhere(
        lambda x: {
            "argsort": jp.argsort(x, axis=1),
            "argsort_down": jp.argsort(x, axis=1, descending=True),
            "sort": jp.sort(x, axis=1),
            "top": lax.top_k(x, 4),
        },
        x,
        atol=0,
        rtol=0,
    )
    assert outputs[2][0, [0, -1]].tolist() == [limits.min, limits.max]


def test_large_integers_that_no_float_holds_are_told_apart():
    x = np.array([[2**24 + 1, 2**24, 2**24 + 2, -(2**24) - 1, -(2**24)]], np.int32)
    outputs = assert_same_everywhere(lambda x: lax.top_k(x, 5), x, atol=0, rtol=0)
    assert outputs[1].tolist() == [[2, 0, 1, 4, 3]]


def test_an_approximate_top_k_is_refused_with_what_to_use():
    with pytest.raises(UnsupportedOperationError, match="use jax.lax.top_k"):
        assert_same_everywhere(lambda x: lax.approx_max_k(x, 2), X)


EDGES = np.linspace(-1, 1, 5).astype(np.float32)

SEARCHING = {
    "interp": lambda x: jp.interp(x, EDGES, EDGES**2),
    "digitize": lambda x: jp.digitize(x, EDGES),
    "histogram": lambda x: jax.vmap(lambda r: jp.histogram(r, EDGES)[0])(jp.nan_to_num(x)),
    **{
        f"{method}_{side}": lambda x, side=side, method=method: jp.searchsorted(
            EDGES, x, side=side, method=method
        )
        for method in ("scan", "scan_unrolled", "sort", "compare_all")
        for side in ("left", "right")
    },
    "per_row": lambda x: jax.vmap(lambda r: jp.searchsorted(jp.sort(r), r))(x),
    "integers": lambda x: jp.searchsorted(
        jp.array([0, 2, 2, 5]), jp.nan_to_num(x).astype(jp.int32)
    ),
}


@pytest.mark.parametrize("batch_size", [None, 6])
def test_searching_sorted_numbers(batch_size):
    # JAX itself cannot sort edges and values together where it does not know how many there are.
    unknown = ("sort_left", "sort_right") if batch_size is None else ()
    assert_same_everywhere(
        lambda x: {name: f(x) for name, f in SEARCHING.items() if name not in unknown},
        X,
        batch_size=batch_size,
        atol=1e-6,
        rtol=1e-6,
    )
