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


SORTING = {
    "sort": lambda x: jp.sort(x, axis=1),
    "sort_down": lambda x: jp.sort(x, axis=1, descending=True),
    "sort_other_axis": lambda x: jp.sort(x[:, None, :] * jp.array([[1.0], [-1.0]]), axis=1),
    "argsort": lambda x: jp.argsort(x, axis=1),
    "argsort_down": lambda x: jp.argsort(x, axis=1, descending=True),
    "rank": lambda x: jp.argsort(jp.argsort(x, axis=1), axis=1),
    "carried_along": lambda x: lax.sort((x, -x, x * 2.0), dimension=1, num_keys=1),
    "two_keys": lambda x: lax.sort((jp.round(x), -x, x * 2.0), dimension=1, num_keys=2),
    "top": lambda x: lax.top_k(x, 3),
    "top_other_axis": lambda x: lax.top_k(jp.swapaxes(x, 0, 1), 2, axis=0),
    "top_of_all": lambda x: lax.top_k(x, 7),
    "median": lambda x: jp.median(jp.nan_to_num(x), axis=1),
    "quantile": lambda x: jp.quantile(jp.clip(jp.nan_to_num(x), -9.0, 9.0), 0.3, axis=1),
    "bools": lambda x: jp.sort(x > 0.0, axis=1),
    "argsort_bools": lambda x: jp.argsort(x > 0.0, axis=1),
    "top_bools": lambda x: lax.top_k(x > 0.0, 3)[1],
    "lexsort": lambda x: jp.lexsort((x, jp.round(x)), axis=1),
    "partition": lambda x: jp.partition(x, 2, axis=1),
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


SIGNS = np.array([[1, -np.nan, 0.0, -0.0, np.nan, np.inf, -np.inf, -1, -0.0, 0.0]], np.float32)


def places_of_the_largest(x):
    return [lax.top_k(x, 10)[1], lax.top_k(-x[:, :, None], 10, axis=1)[1][:, :, 0]]


def test_top_k_goes_by_the_sign_of_zero_and_of_nan():
    outputs = assert_same_everywhere(places_of_the_largest, SIGNS, formats=["saved_model"])
    assert outputs[0].tolist() == [[4, 5, 0, 2, 9, 3, 8, 7, 6, 1]]
    # ONNX cannot read the sign of a NaN, but knows what a negation does to one that has none.
    assert_same_everywhere(places_of_the_largest, np.abs(SIGNS) * np.sign(SIGNS), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_top_k_of_other_floats(dtype):
    with jax.enable_x64(dtype == "float64"):
        given = SIGNS.astype(dtype)
        outputs = assert_same_everywhere(places_of_the_largest, given, formats=["saved_model"])
        assert outputs[0].tolist() == [[4, 5, 0, 2, 9, 3, 8, 7, 6, 1]]
        # Without the NaN of negative sign.
        assert_same_everywhere(places_of_the_largest, np.delete(given, [1], 1).repeat(2, 1)[:, :10])


def test_an_approximate_top_k_is_exact_as_on_every_machine_but_a_tpu():
    numbers = np.nan_to_num(X)
    assert_same_everywhere(
        lambda x: {
            "largest": lax.approx_max_k(x, 3),
            "smallest": lax.approx_min_k(x, 3),
            "other_axis": jp.swapaxes(
                lax.approx_max_k(jp.swapaxes(x, 0, 1), 2, reduction_dimension=0)[0], 0, 1
            ),
        },
        numbers,
        atol=0,
        rtol=0,
    )
    with pytest.raises(UnsupportedOperationError, match="leave it True"):
        assert_same_everywhere(lambda x: lax.approx_max_k(x, 2, aggregate_to_topk=False), numbers)


EDGES = np.linspace(-1, 1, 5).astype(np.float32)

SIDES = {
    "scan": ("left", "right"),
    "scan_unrolled": ("right",),
    "sort": ("left", "right"),
    "compare_all": ("left",),
}
"""Ways to search that differ in their operations; an unrolled one has many."""

SEARCHING = {
    "interp": lambda x: jp.interp(x, EDGES, EDGES**2),
    "digitize": lambda x: jp.digitize(x, EDGES),
    "histogram": lambda x: jax.vmap(lambda r: jp.histogram(r, EDGES)[0])(jp.nan_to_num(x)),
    **{
        f"{method}_{side}": lambda x, side=side, method=method: jp.searchsorted(
            EDGES, x, side=side, method=method
        )
        for method, sides in SIDES.items()
        for side in sides
    },
    "per_row": lambda x: jax.vmap(lambda r: jp.searchsorted(jp.sort(r), r))(x),
    "integers": lambda x: jp.searchsorted(
        jp.array([0, 2, 2, 5]), jp.nan_to_num(x).astype(jp.int32)
    ),
}


def test_searching_sorted_numbers():
    # JAX itself cannot sort edges and values together where it does not know how many there are.
    fixed = ("sort_left", "sort_right", "per_row")
    for names, batch_size in ((SEARCHING.keys() - {*fixed[:2]}, None), (fixed, 6)):
        assert_same_everywhere(
            lambda x, names=names: {name: SEARCHING[name](x) for name in names},
            X,
            batch_size=batch_size,
            atol=1e-6,
            rtol=1e-6,
        )
