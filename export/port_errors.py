"""How far one output is from its reference, gathered piece by piece of a trajectory.

A thousand steps of 64 robots with long delays are more than memory should hold several times over,
so recordings are measured a few steps at a time and only what differs at all is looked at closely.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from serving.parity_record import PortResult

_SLACK = 1e-5
"""Far more than the few roundings of float32 in a limit, relative to it."""


class PortErrors:
    """Gathers the errors of one port.

    An element is within bounds if `|actual - expected| <= bound + bound * |expected| + effect`;
    integers and bools must be equal. NaN against NaN and an infinity against the same one are equal
    and counted; anything else that is not finite is a failure.

    Args:
        name: The port.
        bound: Absolute bound, and relative bound added to it.
        effect: The rounding effect that `PortResult` explains, of each step `[T]` or of all.

    Attributes:
        violations: Elements outside the bound so far.
    """

    def __init__(self, name: str, bound: float, effect: np.ndarray | float = 0.0):
        self._name = name
        self._bound = bound
        self._effect = effect
        self._steps = 0
        self._max_abs = self._max_rel = 0.0
        self._max_ulp = 0
        self._worst = (-np.inf, 0, 0)
        self._equal_nans = 0
        self.violations = 0

    @property
    def max_abs_error(self) -> float:
        """Largest absolute difference so far."""
        return self._max_abs

    def widen(self, effect: np.ndarray) -> None:
        """Have a larger rounding effect from now on, and for what was within bounds so far.

        Args:
            effect: Of each step, `[T]`; where it is smaller than that so far, that stays.
        """
        excess, step, row = self._worst
        before = self._effect_at(step)
        self._effect = np.maximum(self._effect, effect)
        self._worst = (excess + before - self._effect_at(step), step, row)

    def _effect_at(self, steps: Any) -> Any:
        return self._effect[steps] if isinstance(self._effect, np.ndarray) else self._effect

    def add(self, actual: np.ndarray, expected: np.ndarray) -> None:
        """Measure the next steps, `[T, B, ...]` both."""
        first, self._steps = self._steps, self._steps + expected.shape[0]
        if not expected.size:
            return
        is_float = expected.dtype.kind == "f"
        if is_float:
            smallest = float(np.min(self._effect_at(slice(first, self._steps))))
            places = self._of_interest(actual, expected, smallest)
        else:
            places = np.nonzero(actual != expected)
        if not places[0].size:
            return
        own, wanted = actual[places], expected[places]
        if is_float:
            both_nan = np.isnan(own) & np.isnan(wanted)
            if both_nan.any():
                self._equal_nans += int(both_nan.sum())
                places = tuple(axis[~both_nan] for axis in places)
                own, wanted = own[~both_nan], wanted[~both_nan]
                if not own.size:
                    return
        a, e = own.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.abs(a - e)
        error[np.isnan(error)] = np.inf
        if not is_float:
            # As floats, two long integers that differ may be the same.
            error = np.maximum(error, 1.0)
        magnitude = np.where(np.isfinite(e), np.abs(e), 0.0)
        excess = error
        if is_float:
            effect = self._effect_at(first + places[0])
            excess = error - (self._bound + self._bound * magnitude + effect)
        self.violations += int(np.count_nonzero(excess > 0))
        self._max_abs = max(self._max_abs, float(error.max()))
        relative = error[magnitude > 0] / magnitude[magnitude > 0]
        self._max_rel = max(self._max_rel, float(relative.max(initial=0.0)))
        worst = int(np.argmax(excess))
        if excess[worst] > self._worst[0]:
            self._worst = (excess[worst], first + int(places[0][worst]), int(places[1][worst]))
        if is_float:
            self._max_ulp = max(self._max_ulp, _max_ulp(own, wanted))

    def _of_interest(
        self, actual: np.ndarray, expected: np.ndarray, effect: float
    ) -> tuple[np.ndarray, ...]:
        """Return where a pair of floats may change what was found so far.

        In a run that has gone astray nearly all pairs differ. Few of them are further apart than
        all before, in any of the measures, and only those need a close look. What is computed here
        is rounded, so each limit is a little lower than it has to be.
        """
        if expected.dtype.itemsize < 4:
            return np.nonzero(actual != expected)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            error = np.subtract(actual, expected)
            np.abs(error, out=error)
            largest = float(error.max())
            # NaN and infinity come through here.
            if not math.isfinite(largest):
                return np.nonzero(actual != expected)
            # Numbers of one sign are at least 2**-24 of the smaller apart, for each one between
            # them. What is further apart in relation to the reference is so to the smaller, too.
            smaller = np.abs(actual)
            np.minimum(smaller, np.abs(expected), out=smaller)
            smaller *= _lower(min(self._max_rel, self._max_ulp * 2.0**-24))
            further = error > smaller
            if largest > _lower(self._max_abs):
                further |= error > _lower(self._max_abs)
            limit = min(0.0, self._worst[0]) + self._bound + effect
            limit -= _SLACK * abs(limit)
            if largest > limit:
                close = error > _lower(self._bound) * np.abs(expected) + limit
                further |= close & (error > 0) if limit < 0.0 else close
            # Of two signs, fewest numbers lie between if both are equally far from zero.
            half = _lower(2.0 * float(np.asarray(self._max_ulp // 2, np.int32).view(np.float32)))
            if largest > half:
                further |= (np.signbit(actual) != np.signbit(expected)) & (error > half)
        # Far quicker than `nonzero` of several axes.
        return np.unravel_index(np.flatnonzero(further), further.shape)

    def result(self) -> PortResult:
        """Return what was found in all that was added."""
        return PortResult(
            name=self._name,
            max_abs_error=self._max_abs,
            max_rel_error=self._max_rel,
            max_ulp=self._max_ulp,
            worst_step=self._worst[1],
            worst_row=self._worst[2],
            equal_nans=self._equal_nans,
            violations=self.violations,
            rounding_effect=float(np.max(self._effect)),
        )


def _lower(limit: float) -> float:
    return limit * (1.0 - _SLACK)


def measure(
    name: str,
    actual: np.ndarray,
    expected: np.ndarray,
    bound: float,
    effect: np.ndarray | float = 0.0,
) -> PortResult:
    """Compare two whole recordings of one port, `[T, B, ...]` each."""
    errors = PortErrors(name, bound, effect)
    errors.add(actual, expected)
    return errors.result()


def _max_ulp(actual: np.ndarray, expected: np.ndarray) -> int:
    """Return the largest distance in representable float32 numbers, over finite pairs.

    Floats order like their bit patterns as sign-magnitude integers, so the distance is a difference
    of integers (Bruce Dawson, "Comparing Floating Point Numbers", 2012).
    """
    finite = np.isfinite(actual) & np.isfinite(expected)
    if not finite.any():
        return 0
    places = []
    for values in (actual, expected):
        bits = np.ascontiguousarray(values[finite], np.float32).view(np.int32).astype(np.int64)
        places.append(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))
    return int(np.abs(places[0] - places[1]).max())
