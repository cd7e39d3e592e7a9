"""Rules for special functions, written out of operations that every runtime has.

The ones with cancellation inside compute in float64 and return float32. What is given as float64
is refused, since an approximation to float32's precision would look like a result in float64's.

Sources: Chebyshev expansions were fitted for this file to within 2e-8 of SciPy's functions, in the
variables that the named papers use. DLMF is the NIST Digital Library of Mathematical Functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from export.lowering.elementwise import constants
from export.lowering.registry import RULES, NotLowerable

# erfcx(x) (1 + 2x) in (x - 3.75) / (x + 3.75), as in Shepherd and Laframboise, "Chebyshev
# approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", Mathematics of Computation 36 (1981).
_ERFCX = [
    1.177578935, -0.004590054581, -0.08424913337, 0.05920994, -0.02665866844, 0.009074997671,
    -0.00241316354, 0.0004907758365, -6.916973303e-05, 4.139027986e-06, 7.740383051e-07,
    -2.188640106e-07, 1.076499798e-08, 4.521959589e-09, -7.754409771e-10,
]  # fmt: skip

# e^-x I0(x) in x/4 - 1 up to x = 8; above, sqrt(x) times it in 16/x - 1. For I1 the same, below 8
# divided by x. The split is that of Moshier's Cephes library.
_I0_SMALL = [
    0.3383976372, -0.3046826723, 0.1716209015, -0.09490109705, 0.04930528424, -0.02373741481,
    0.01054646039, -0.004324309995, 0.001639475617, -0.0005763755745, 0.0001885028851,
    -5.75419501e-05, 1.644844807e-05, -4.416738358e-06, 1.117387538e-06, -2.670793847e-07,
    6.046994913e-08, -1.300024928e-08, 2.659822651e-09,
]  # fmt: skip
_I0_LARGE = [
    0.4022452055, 0.003369116478, 6.889758347e-05, 2.891370521e-06, 2.048918589e-07,
    2.266668992e-08, 3.396231927e-09, 4.94060251e-10,
]  # fmt: skip
_I1_SMALL = [
    0.1262935932, -0.1764165184, 0.1026436587, -0.05294598121, 0.02472644903, -0.01056408489,
    0.004156422944, -0.001513572451, 0.0005122859562, -0.0001617608158, 4.781565108e-05,
    -1.327316366e-05, 3.470251308e-06, -8.568720265e-07, 2.003294755e-07, -4.445059145e-08,
    9.381537591e-09, -1.88724997e-09,
]  # fmt: skip
_I1_LARGE = [
    0.3892881175, -0.009761097491, -0.0001105889388, -3.882564809e-06, -2.512236238e-07,
    -2.631468847e-08, -3.835380482e-09, -5.58974339e-10,
]  # fmt: skip

# Giles, "Approximating the erfinv function", GPU Computing Gems Jade Edition (2012), single
# precision; highest power first.
_ERF_INV_CENTRE = [
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
]  # fmt: skip
_ERF_INV_TAIL = [
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
]  # fmt: skip

_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510]
"""The Bernoulli numbers of index 2, 4, ...; asymptotic series below are in these."""

_SHIFT = 8
"""By how much recurrences move an argument up to where asymptotic series have converged."""


def _register(primitive: str, compute: Callable[..., Any], *, in_float64: bool) -> None:
    def rule(lowering: Any, equation: Any, *inputs: Any) -> Any:
        dtype = inputs[0].dtype
        if dtype != tf.float32:
            raise NotLowerable(f"{primitive} of {dtype.name}; only float32 is supported")
        if in_float64:
            inputs = tuple(tf.cast(item, tf.float64) for item in inputs)
        return tf.cast(compute(*inputs), dtype)

    RULES.register(primitive, broadcasts=True)(rule)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    first, *others = constants(x, *coefficients)
    result = x * first + others[0]
    for coefficient in others[1:]:
        result = result * x + coefficient
    return result


def _chebyshev(x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a Chebyshev expansion on [-1, 1] by Clenshaw's recurrence (DLMF 3.11.15)."""
    twice = x + x
    after, now = constants(x, 0, coefficients[-1])
    for coefficient in reversed(coefficients[1:-1]):
        after, now = now, twice * now - after + constants(x, coefficient)[0]
    return x * now - after + constants(x, coefficients[0])[0]


def erfc(x: Any) -> Any:
    """Return 1 - erf(x) with a small relative error also where it is tiny."""
    zero, one, two, middle, beyond = constants(x, 0, 1, 2, 3.75, 30)
    # Beyond 30 the result is zero; the bound keeps infinity out of the quotient.
    size = tf.minimum(tf.abs(x), beyond)
    expansion = _chebyshev((size - middle) / (size + middle), _ERFCX)
    tail = tf.exp(-size * size) * expansion / (one + two * size)
    return tf.where(tf.less(x, zero), two - tail, tail)


def erf_inv(x: Any) -> Any:
    """Return y with erf(y) = x."""
    one, split, centre, tail, infinity = constants(x, 1, 5, 2.5, 3, np.inf)
    w = -tf.math.log1p(-x * x)
    near = _polynomial(tf.minimum(w, split) - centre, _ERF_INV_CENTRE)
    far = _polynomial(tf.sqrt(tf.minimum(tf.maximum(w, split), 10 * split)) - tail, _ERF_INV_TAIL)
    inside = x * tf.where(tf.less(w, split), near, far)
    outside = tf.where(tf.equal(tf.abs(x), one), x * infinity, w)
    return tf.where(tf.less(tf.abs(x), one), inside, outside)


def cube_root(x: Any) -> Any:
    """Return the real cube root: a power, improved by one step of Newton's method."""
    zero, third, infinity = constants(x, 0, 1 / 3, np.inf)
    size = tf.abs(x)
    root = tf.pow(size, third)
    better = root - (root - size / (root * root)) * third
    signed = tf.where(tf.less(x, zero), -better, better)
    exact = tf.logical_or(tf.equal(size, zero), tf.equal(size, infinity))
    return tf.where(exact, x, signed)


def _scaled_bessel(x: Any, small: Sequence[float], large: Sequence[float]) -> tuple[Any, Any, Any]:
    """Return the expansions up to 8 and above it, and which one holds."""
    one, four, split, sixteen, end = constants(x, 1, 4, 8, 16, 1e300)
    size = tf.abs(x)
    below = _chebyshev(tf.minimum(size, split) / four - one, small)
    above_split = tf.minimum(tf.maximum(size, split), end)
    above = _chebyshev(sixteen / above_split - one, large) / tf.sqrt(above_split)
    return below, above, tf.less_equal(size, split)


def bessel_i0e(x: Any) -> Any:
    """Return e^-|x| I0(x)."""
    below, above, is_below = _scaled_bessel(x, _I0_SMALL, _I0_LARGE)
    return _nan_where_nan(x, tf.where(is_below, below, above))


def bessel_i1e(x: Any) -> Any:
    """Return e^-|x| I1(x)."""
    below, above, is_below = _scaled_bessel(x, _I1_SMALL, _I1_LARGE)
    (zero,) = constants(x, 0)
    signed = tf.where(tf.less(x, zero), -above, above)
    return _nan_where_nan(x, tf.where(is_below, below * x, signed))


def lgamma(x: Any) -> Any:
    """Return log |Gamma(x)|, by Stirling's series (DLMF 5.11.1) after a shift upwards.

    Below one half by reflection (DLMF 5.5.3). The argument is float64.
    """
    zero, half, one, pi, infinity = constants(x, 0, 0.5, 1, np.pi, np.inf)
    reflected = tf.less(x, half)
    z = tf.where(reflected, one - x, x)
    product = one
    for step in range(_SHIFT):
        product = product * (tf.minimum(z, constants(x, 1e30)[0]) + constants(x, step)[0])
    shifted = z + constants(x, _SHIFT)[0]
    series = _asymptotic(
        one / shifted, [b / (2 * n * (2 * n - 1)) for n, b in enumerate(_BERNOULLI, 1)]
    )
    log_sqrt_two_pi = constants(x, 0.5 * np.log(2 * np.pi))[0]
    large = (shifted - half) * tf.math.log(shifted) - shifted + log_sqrt_two_pi + series
    direct = large - tf.math.log(product)
    # sin(pi x) of the distance to the nearest integer, which is exact.
    sine = tf.abs(tf.sin(pi * (x - tf.round(x))))
    result = tf.where(reflected, tf.math.log(pi) - tf.math.log(sine) - direct, direct)
    return tf.where(tf.equal(tf.abs(x), infinity), infinity, result)


def digamma(x: Any) -> Any:
    """Return the derivative of log Gamma (DLMF 5.11.2, 5.5.2, 5.5.4). The argument is float64."""
    zero, half, one, pi, nan = constants(x, 0, 0.5, 1, np.pi, np.nan)
    reflected = tf.less(x, half)
    z = tf.where(reflected, one - x, x)
    recurrence = one / z
    for step in range(1, _SHIFT):
        recurrence = recurrence + one / (z + constants(x, step)[0])
    shifted = z + constants(x, _SHIFT)[0]
    inverse = one / shifted
    series = _asymptotic(inverse, [b / (2 * n) for n, b in enumerate(_BERNOULLI, 1)]) * inverse
    direct = tf.math.log(shifted) - half * inverse - series - recurrence
    angle = pi * (x - tf.round(x))
    result = tf.where(reflected, direct - pi * tf.cos(angle) / tf.sin(angle), direct)
    pole = tf.logical_and(tf.less_equal(x, zero), tf.equal(tf.floor(x), x))
    # At zero, older versions of JAX give NaN as at the other poles, 0.12 gives -infinity.
    at_zero = constants(x, float(jax.lax.digamma(0.0)))[0]
    return tf.where(tf.equal(x, zero), at_zero, tf.where(pole, nan, result))


def zeta(s: Any, q: Any) -> Any:
    """Return Hurwitz's zeta function by Euler-Maclaurin summation (DLMF 25.11.28), in float64."""
    zero, half, one, nan, infinity = constants(s, 0, 0.5, 1, np.nan, np.inf)
    total = tf.pow(q, -s)
    for step in range(1, _SHIFT):
        total = total + tf.pow(q + constants(s, step)[0], -s)
    end = q + constants(s, _SHIFT)[0]
    power = tf.pow(end, -s)
    total = total + power * end / (s - one) + half * power
    inverse = one / end
    factor = s * power * inverse
    divisor = 1.0
    for index, bernoulli in enumerate(_BERNOULLI, 1):
        divisor *= (2 * index - 1) * (2 * index)
        total = total + factor * constants(s, bernoulli / divisor)[0]
        first, second = constants(s, 2 * index - 1, 2 * index)
        factor = factor * (s + first) * (s + second) * inverse * inverse
    whole = tf.equal(tf.floor(q), q)
    at_most_zero = tf.less_equal(q, zero)
    # The terms at a pole have signs that agree for an even power only.
    even = tf.equal(constants(s, 2)[0] * tf.floor(s * half), s)
    at_pole = tf.where(even, infinity, nan)
    total = tf.where(tf.logical_and(at_most_zero, whole), at_pole, total)
    undefined = tf.logical_and(at_most_zero, tf.not_equal(tf.floor(s), s))
    total = tf.where(tf.logical_or(undefined, tf.less(s, one)), nan, total)
    return tf.where(tf.equal(s, one), infinity, total)


def polygamma(order: Any, x: Any) -> Any:
    """Return the derivative of digamma of an order (DLMF 5.15.1), in float64."""
    zero, half, one, two, nan = constants(order, 0, 0.5, 1, 2, np.nan)
    magnitude = tf.exp(lgamma(order + one)) * zeta(order + one, x)
    even = tf.equal(order - two * tf.floor(order * half), zero)
    result = tf.where(even, -magnitude, magnitude)
    valid = tf.logical_and(tf.greater_equal(order, zero), tf.equal(tf.floor(order), order))
    return tf.where(tf.equal(order, zero), digamma(x), tf.where(valid, result, nan))


def next_after(x: Any, y: Any, dtype: str) -> Any:
    """Return the number of a dtype after x in the direction of y; both are given as float64.

    A step of between one half and one unit in the last place lands, rounded, on the neighbour. The
    step is that on both sides of a power of two, where the unit changes.
    """
    info = jnp.finfo(dtype)
    # A little more than half a unit, by so much that float32 still shows it.
    half_unit = 2.0 ** -(info.nmant + 1) * (1 + 2.0 ** (-20 if dtype == "float32" else -10))
    zero, relative = constants(x, 0, half_unit)
    smallest, end = constants(x, float(info.smallest_subnormal), 2.0**info.maxexp)
    start = tf.minimum(tf.maximum(x, -end), end)
    step = tf.maximum(tf.abs(start) * relative, smallest)
    moved = tf.where(tf.greater(y, x), start + step, start - step)
    moved = tf.where(tf.equal(x, y), y, moved)
    return tf.where(tf.equal(y, y), _nan_where_nan(x, moved), y + zero)


@RULES.register("nextafter", broadcasts=True)
def _next_after(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    if x.dtype != tf.float32:
        raise NotLowerable(f"nextafter of {x.dtype.name}; only float32 is supported")
    dtype = str(equation.outvars[0].aval.dtype)
    return tf.cast(next_after(tf.cast(x, tf.float64), tf.cast(y, tf.float64), dtype), x.dtype)


def _asymptotic(inverse: Any, coefficients: Sequence[float]) -> Any:
    """Return c1 / z + c2 / z^3 + ..., given 1/z."""
    return inverse * _polynomial(inverse * inverse, list(reversed(coefficients)))


def _nan_where_nan(x: Any, value: Any) -> Any:
    return tf.where(tf.equal(x, x), value, x)


_register("erfc", erfc, in_float64=True)
_register("erf_inv", erf_inv, in_float64=False)
_register("cbrt", cube_root, in_float64=False)
_register("bessel_i0e", bessel_i0e, in_float64=True)
_register("bessel_i1e", bessel_i1e, in_float64=True)
_register("lgamma", lgamma, in_float64=True)
_register("digamma", digamma, in_float64=True)
_register("zeta", zeta, in_float64=True)
_register("polygamma", polygamma, in_float64=True)
