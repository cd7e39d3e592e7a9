"""Generalized advantage estimation, accurate to the last bit of the result.

The recursion adds hundreds of terms, and float32 cannot even hold 0.99 * 0.95 closely enough: a
plain implementation is off by several units in the last place. Here each running value is kept as
an unevaluated sum of two floats, which costs little beside the networks' own arithmetic
(T. J. Dekker, "A floating-point technique for extending the available precision", 1971).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Shaped

from nnx_ppo.networks.types import AnyArray


class Pair(NamedTuple):
    """A number as the sum of a float and a much smaller correction."""

    high: Any
    low: Any


def gae(
    rewards: Shaped[AnyArray, "time batch"],
    values_excl_last: Shaped[AnyArray, "time batch"],
    last_value: Shaped[AnyArray, " batch"],
    done: Shaped[AnyArray, "time batch"],
    truncation: Shaped[AnyArray, "time batch"],
    lambda_: ArrayLike,
    gamma: ArrayLike,
) -> Shaped[jax.Array, "time batch"]:
    """Estimates how much better each action was than the critic expected.

    With ``d_t = r_t + gamma * V_{t+1} - V_t``, where ``V_{t+1}`` is 0 after a terminal step and
    ``d_t`` is 0 for a truncated one, the advantage is
    ``A_t = d_t + (1 - done_t) * gamma * lambda * A_{t+1}`` (J. Schulman et al., "High-dimensional
    continuous control using generalized advantage estimation", 2016).

    Args:
        rewards: Reward of each step.
        values_excl_last: The critic's value of each observation acted on.
        last_value: Its value of the observation after the last step.
        done: Whether the episode ended with the step, bool or float.
        truncation: Whether it ended because of a time limit only, bool or float.
        lambda_: Weight of later terms, in [0, 1].
        gamma: Discount per step, in [0, 1].

    Returns:
        Advantages, through which no gradient flows.
    """
    values = jp.asarray(values_excl_last)
    dtype = values.dtype
    rewards, last_value = jp.asarray(rewards, dtype), jp.asarray(last_value, dtype)
    ended, truncated = jp.asarray(done, bool), jp.asarray(truncation, bool)
    discount = _pair(gamma, dtype)
    decay = _multiply(discount, _pair(lambda_, dtype))

    next_values = jp.concatenate([values[1:], last_value[None]])
    next_values = jp.where(ended, jp.zeros((), dtype), next_values)
    surprise = _add(_multiply(discount, Pair(next_values, jp.zeros_like(values))), rewards)
    surprise = _add(surprise, -values)
    surprise = jax.tree.map(lambda x: jp.where(truncated, jp.zeros((), dtype), x), surprise)

    def accumulate(later: Pair, step: tuple[Pair, jax.Array]) -> tuple[Pair, jax.Array]:
        surprise, ended = step
        carried = _multiply(decay, later)
        carried = jax.tree.map(lambda x: jp.where(ended, jp.zeros((), dtype), x), carried)
        total = _add(carried, surprise.high)
        total = Pair(*_two_sum(total.high, total.low + surprise.low))
        return total, total.high

    nothing = Pair(jp.zeros_like(last_value), jp.zeros_like(last_value))
    _, advantages = jax.lax.scan(accumulate, nothing, (surprise, ended), reverse=True)
    return jax.lax.stop_gradient(advantages)


def _pair(number: ArrayLike, dtype: Any) -> Pair:
    """Splits a Python number, whose 53 bits a float32 cannot hold; arrays have no more bits."""
    if isinstance(number, int | float | np.generic):
        high = np.asarray(number, dtype)
        return Pair(jp.asarray(high), jp.asarray(float(number) - float(high), dtype))
    high = jp.asarray(number, dtype)
    return Pair(high, jp.zeros_like(high))


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ``a + b`` as rounded, and exactly what the rounding lost (Knuth)."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def _two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ``a * b`` as rounded, and exactly what the rounding lost (Dekker)."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits the significand in two halves, whose products are exact."""
    info = jp.finfo(x.dtype)
    # An operation of its own, so that no compiler can simplify the split away.
    high = jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant // 2)
    return high, x - high


def _multiply(a: Pair, b: Pair) -> Pair:
    product, error = _two_product(a.high, b.high)
    return Pair(product, error + (a.high * b.low + a.low * b.high))


def _add(a: Pair, b: jax.Array) -> Pair:
    total, error = _two_sum(a.high, b)
    return Pair(total, error + a.low)
