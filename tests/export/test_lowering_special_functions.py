"""Special functions agree with JAX and, where JAX itself is close to it, with the truth."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
import scipy.special
from jax import lax
from lowered import assert_same_everywhere, run_everywhere

from export import UnsupportedOperationError

SPREAD = np.concatenate([np.linspace(-9, 9, 181), np.logspace(-20, 20, 41)]).astype(np.float32)
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0], np.float32)

REAL_LINE = {
    "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e,
    "cbrt": jp.cbrt,
    "erfc": lax.erfc,
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "sign": jp.sign,
}


@pytest.mark.parametrize("values", [SPREAD, SPECIAL], ids=["ordinary", "special"])
@pytest.mark.parametrize("name", REAL_LINE)
def test_a_function_of_the_real_line(name, values):
    assert_same_everywhere(REAL_LINE[name], values[None], atol=1e-37, rtol=8e-6)


def test_erf_inv_reaches_into_both_tails():
    tails = 1 - np.logspace(-7, -1, 40)
    values = np.concatenate([np.linspace(-0.99, 0.99, 60), tails, -tails, [1, -1, 0, 2, np.nan]])
    # JAX's own is off by 6e-6 near one; ours takes the same way, and so the same number comes out.
    assert_same_everywhere(lax.erf_inv, values[None].astype(np.float32), atol=1e-7, rtol=5e-7)


def test_erfc_is_right_to_the_last_place_but_one_far_into_its_tail():
    values = np.linspace(-5, 9, 400).astype(np.float32)
    truth = scipy.special.erfc(values.astype(np.float64))
    by_jax, *ours = run_everywhere(lax.erfc, values[None])
    for outputs in ours:
        np.testing.assert_allclose(outputs[0][0], truth, atol=0, rtol=1.2e-7)
    np.testing.assert_allclose(by_jax[0][0], truth, atol=0, rtol=5e-6)


@pytest.mark.parametrize("function", [lax.lgamma, lax.digamma])
def test_gamma_functions(function):
    values = np.concatenate([np.linspace(0.05, 30, 200), np.linspace(-4.9, -0.1, 7), [1e5, 1e10]])
    values = values.astype(np.float32)[None]
    assert_same_everywhere(function, values, atol=1e-5, rtol=1e-5)


def test_gamma_functions_at_poles_and_infinities():
    values = np.array([[np.inf, np.nan, -1.0, -2.0, 1.0]], np.float32)
    assert_same_everywhere(
        lambda x: {"lgamma": lax.lgamma(x), "digamma": lax.digamma(x)}, values, atol=2e-6
    )


def test_zeta_and_polygamma():
    s, q = np.meshgrid([1.5, 2.0, 3.0, 7.0], [0.5, 1.0, 2.5, 20.0, 1e3])
    order = np.meshgrid([0.0, 1.0, 2.0, 3.0], [0.5, 1.0, 2.5, 20.0, 1e3])[0]
    given = {"order": order, "q": q, "s": s}
    assert_same_everywhere(
        lambda o: {
            "polygamma": lax.polygamma(o["order"], o["q"]),
            "zeta": lax.zeta(o["s"], o["q"]),
        },
        {name: value.astype(np.float32) for name, value in given.items()},
        rtol=2e-5,
        atol=1e-30,
    )


def test_nextafter_is_exact():
    x = np.array([1, -1, 1.0000001, 0.5, 3e38, -7.25, np.inf, 1e-30, 5], np.float32)
    y = np.array([2, -2, 0, 0.25, np.inf, 0, 0, 1, 5], np.float32)
    outputs = assert_same_everywhere(
        lambda o: jp.nextafter(o["x"], o["y"]), {"x": x[None], "y": y[None]}, atol=0, rtol=0
    )
    assert outputs[0][0].tolist() == np.nextafter(x, y).tolist()


def test_float_remainder_is_exact_for_huge_ratios():
    x = np.array([1e30, -1e30, 5.5, -5.5, 3, np.inf, 7, np.nan, 2**24 + 2], np.float32)
    y = np.array([3, 7, 2, -2, np.inf, 2, 0, 1, 3], np.float32)
    outputs = assert_same_everywhere(
        lambda o: lax.rem(o["x"], o["y"]), {"x": x[None], "y": y[None]}, atol=0, rtol=0
    )
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(outputs[0][0], np.fmod(x, y))


def test_rounding_away_from_zero_near_one_half_and_beyond_the_fraction():
    values = np.array([[0.49999997, 0.5, -0.5, 1.5, 2.5, -2.5, 8388609, -8388609]], np.float32)
    outputs = assert_same_everywhere(
        lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), values, atol=0, rtol=0
    )
    assert outputs[0][0].tolist() == [0, 1, -1, 2, 3, -3, 8388609, -8388609]


def test_atan2_in_every_quadrant_and_on_the_axes():
    sides = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, 1e30], np.float32)
    y, x = (side.reshape(1, -1) for side in np.meshgrid(sides, sides))
    expected, portable, onnx = run_everywhere(lambda o: jp.atan2(o["y"], o["x"]), {"x": x, "y": y})
    for outputs in (portable, onnx):
        np.testing.assert_allclose(outputs[0], expected[0], atol=1e-37, rtol=5e-7)
        numbers = ~np.isnan(expected[0])
        np.testing.assert_array_equal(
            np.signbit(outputs[0][numbers]), np.signbit(expected[0][numbers])
        )


def test_powers_at_special_values():
    x, y = np.meshgrid([-8, -1, -0.0, 0, 1, 2, np.inf, -np.inf, np.nan], [-3, -2, 0, 0.5, 3, 127])
    given = {"x": x.reshape(1, -1).astype(np.float32), "y": y.reshape(1, -1).astype(np.float32)}
    assert_same_everywhere(
        lambda o: {
            "cube": lax.integer_pow(o["x"], 3),
            "inverse": lax.integer_pow(o["x"], -2),
            "pow": lax.pow(o["x"], o["y"]),
        },
        given,
    )


def test_order_with_nan():
    x = np.array([[np.nan, 1, np.nan, 2, np.inf]], np.float32)
    y = np.array([[1, np.nan, np.nan, 3, -np.inf]], np.float32)
    outputs = assert_same_everywhere(
        lambda o: {
            "clamp": lax.clamp(np.float32(0), o["x"], np.float32(1.5)),
            "max": lax.max(o["x"], o["y"]),
            "min": lax.min(o["x"], o["y"]),
        },
        {"x": x, "y": y},
    )
    assert np.isnan(outputs[1][0, :3]).all() and np.isnan(outputs[2][0, :3]).all()


def test_a_written_out_function_of_float64_is_refused():
    with jax.enable_x64(True), pytest.raises(UnsupportedOperationError, match="only float32"):
        assert_same_everywhere(lax.erfc, np.ones((1, 3)))
