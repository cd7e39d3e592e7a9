"""Convolutions, windows and products of matrices give JAX's numbers in every form."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from lowered import assert_same_everywhere, run_everywhere

RANDOM = np.random.default_rng(0)
LENGTHS = (7, 6, 5)
LAYOUTS = {
    1: [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NWC")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NWHC", "IHWO", "NCWH")],
    3: [("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NDHWC")],
}
CASES = {
    "plain": {},
    "strides": {"window_strides": 2},
    "dilated": {"rhs_dilation": 2},
    "transposed": {"lhs_dilation": 2, "padding": (1, 2)},
    "asymmetric": {"padding": (2, 0)},
    "groups": {"feature_group_count": 2},
    "depthwise": {"feature_group_count": 4},
    "depthwise_strides": {"feature_group_count": 4, "window_strides": 2, "padding": (1, 1)},
    "all": {"window_strides": 2, "rhs_dilation": 2, "lhs_dilation": 3, "padding": (2, 1),
            "feature_group_count": 2},
}  # fmt: skip


def arranged(array, own, layout):
    return np.ascontiguousarray(np.transpose(array, [own.index(letter) for letter in layout]))


@pytest.mark.parametrize(
    ("dimensions", "batch_size"),
    [(1, None), (1, 3), (2, None), (2, 3), (3, None), pytest.param(3, 3, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("case", CASES)
def test_convolution(dimensions, case, batch_size):
    options = dict(CASES[case])
    groups = options.pop("feature_group_count", 1)
    padding = [options.pop("padding", (0, 0))] * dimensions
    options = {name: (value,) * dimensions for name, value in options.items()}
    options.setdefault("window_strides", (1,) * dimensions)
    plain = LAYOUTS[dimensions][0]
    x = RANDOM.normal(size=(3, *LENGTHS[:dimensions], 4)).astype(np.float32)
    kernel = RANDOM.normal(size=(*(3, 2, 2)[:dimensions], 4 // groups, 8)).astype(np.float32)
    layouts = LAYOUTS[dimensions] if case in ("plain", "all") else LAYOUTS[dimensions][:1]
    for layout in layouts:
        weights = arranged(kernel, plain[1], layout[1])
        assert_same_everywhere(
            lambda x, weights=weights, layout=layout: lax.conv_general_dilated(
                x,
                weights,
                padding=padding,
                dimension_numbers=layout,
                feature_group_count=groups,
                **options,
            ),
            arranged(x, plain[0], layout[0]),
            atol=1e-5,
            rtol=1e-5,
            batch_size=batch_size,
        )


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolution_with_negative_padding(dimensions, batch_size):
    # Compared with cutting off first: XLA on the CPU reads outside of the array otherwise.
    padding = [(-1, 1)] * dimensions
    ones, layout = (1,) * dimensions, LAYOUTS[dimensions][0]
    x = RANDOM.normal(size=(3, *LENGTHS[:dimensions], 4)).astype(np.float32)
    kernel = RANDOM.normal(size=(*(3, 2, 2)[:dimensions], 4, 8)).astype(np.float32)
    _, *outputs = run_everywhere(
        lambda x: lax.conv_general_dilated(x, kernel, ones, padding, dimension_numbers=layout),
        x,
        batch_size=batch_size,
    )
    inside = lax.pad(x, np.float32(0), [(0, 0, 0), *((-1, 1, 0) for _ in padding), (0, 0, 0)])
    expected = lax.conv_general_dilated(inside, kernel, ones, "VALID", dimension_numbers=layout)
    for (output,) in outputs:
        np.testing.assert_allclose(output, expected, atol=1e-5, rtol=1e-5)


def test_convolution_with_groups_of_the_batch():
    x = RANDOM.normal(size=(4, 6, 6, 3)).astype(np.float32)
    kernel = RANDOM.normal(size=(2, 2, 3, 4)).astype(np.float32)

    def convolve(x):
        grouped = lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"), batch_group_count=2,
        )  # fmt: skip
        return jp.concatenate([grouped, grouped])

    assert_same_everywhere(convolve, x, batch_size=4, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_convolution_of_integers(dtype):
    x = RANDOM.integers(0, 100, (2, 5, 5, 2)).astype(dtype)
    kernel = RANDOM.integers(0, 5, (2, 2, 2, 3)).astype(dtype)
    assert_same_everywhere(
        lambda x: lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=jp.int32,
        ),
        x, atol=0, rtol=0,
    )  # fmt: skip


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("shape", [(8, 3), (7, 6, 3), (4, 5, 6, 2)], ids=len)
def test_pooling_of_flax(shape, padding):
    x = RANDOM.normal(size=(2, *shape)).astype(np.float32)
    window, strides = (3, 2, 2)[: len(shape) - 1], (2, 1, 2)[: len(shape) - 1]
    # Flax divides float32 by an int32, which strict promotion does not allow.
    with jax.numpy_dtype_promotion("standard"):
        assert_same_everywhere(
            lambda x: {
                "avg": nnx.avg_pool(x, window, strides, padding),
                "exclusive": nnx.avg_pool(x, window, strides, padding, count_include_pad=False),
                "max": nnx.max_pool(x, window, strides, padding),
                "min": nnx.min_pool(x, window, strides, padding),
            },
            x,
        )


def test_windows_spread_out_and_combined_by_any_operation():
    x = RANDOM.normal(size=(2, 9)).astype(np.float32)
    x[0, 3] = np.nan
    options = {
        "window_dimensions": (1, 3), "window_strides": (1, 2), "padding": ((0, 0), (1, 2)),
        "base_dilation": (1, 2), "window_dilation": (1, 2),
    }  # fmt: skip
    assert_same_everywhere(
        lambda x: {
            "max": lax.reduce_window(x, -np.float32(np.inf), lax.max, **options),
            "product": lax.reduce_window(x, np.float32(1), lax.mul, **options),
            "sum": lax.reduce_window(x, np.float32(0), lax.add, **options),
        },
        x,
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_windows_of_integers_fill_with_their_own_limits(dtype):
    x = RANDOM.integers(0, 100, (2, 7)).astype(dtype)
    limits = np.iinfo(dtype)
    around = ((0, 0), (2, 2))
    assert_same_everywhere(
        lambda x: {
            "max": lax.reduce_window(x, x.dtype.type(limits.min), lax.max, (1, 2), (1, 1), around),
            "min": lax.reduce_window(x, x.dtype.type(limits.max), lax.min, (1, 2), (1, 1), around),
            "sum": lax.reduce_window(x, x.dtype.type(0), lax.add, (1, 2), (1, 1), around),
        },
        x, atol=0, rtol=0,
    )  # fmt: skip


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize(
    "numbers",
    [
        (((1,), (0,)), ((), ())),
        (((1, 2), (0, 1)), ((), ())),
        (((2,), (2,)), ((1,), (1,))),
        (((3,), (0,)), ((1, 2), (2, 1))),
        (((), ()), ((1,), (0,))),
        (((3, 1), (0, 2)), ((), ())),
    ],
    ids=str,
)
def test_products_over_any_axes(numbers, batch_size):
    (left_contract, right_contract), (left_batch, right_batch) = numbers
    x = RANDOM.normal(size=(3, 2, 4, 5)).astype(np.float32)
    shape = [3, 3, 3]
    for left, right in zip(
        (*left_contract, *left_batch), (*right_contract, *right_batch), strict=True
    ):
        shape[right] = x.shape[left]
    weights = RANDOM.normal(size=shape).astype(np.float32)

    def product(x):
        result = lax.dot_general(x, weights, numbers)
        return jp.moveaxis(result, len(left_batch), 0)

    assert_same_everywhere(product, x, batch_size=batch_size, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"])
def test_products_of_integers_and_bools(dtype):
    x = RANDOM.integers(0, 2 if dtype == "bool" else 100, (3, 4)).astype(dtype)
    weights = RANDOM.integers(0, 2 if dtype == "bool" else 100, (4, 5)).astype(dtype)
    assert_same_everywhere(
        lambda x: {
            "own": lax.dot(x, weights),
            "wide": lax.dot(x, weights, preferred_element_type=jp.int32),
        },
        x,
        atol=0,
        rtol=0,
    )
