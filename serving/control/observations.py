"""Observations that say when they were taken."""

from __future__ import annotations

import dataclasses
from typing import Any

from serving.control.faults import Fault


@dataclasses.dataclass(frozen=True, slots=True)
class Stamped:
    """An observation and when it was taken; what `read` returns for its age to be known.

    Example:
        def read():
            return Stamped(robot.observation(), robot.sampled_at_s)
    """

    value: Any
    """The observation."""
    time_s: float
    """When it was taken, in seconds of the loop's clock: `time.perf_counter` unless another is
    given, which is the system's monotonic clock (`time.monotonic`) on Linux."""


def fresh_value(observation: Any, now_s: float, max_age_s: float | None) -> Any:
    """Returns the observation itself.

    Args:
        observation: what `read` returned.
        now_s: the time in seconds of the loop's clock.
        max_age_s: longest age allowed; None for any, and for observations without a time.

    Raises:
        Fault: of kind "observation_stale" if it is too old, does not say how old it is, or is as
            far in the future: its clock is another one then.
    """
    if not isinstance(observation, Stamped):
        if max_age_s is None:
            return observation
        raise Fault(
            "observation_stale",
            f"max_age_s is {max_age_s}, but read returned a {type(observation).__name__} without "
            "a time; return Stamped(observation, time_s)",
        )
    age_s = now_s - observation.time_s
    # Written so that an age of NaN is none either.
    if max_age_s is not None and not -max_age_s <= age_s <= max_age_s:
        raise Fault(
            "observation_stale",
            f"the observation is {age_s * 1e3:.1f} ms old, allowed are {max_age_s * 1e3:g} ms",
        )
    return observation.value
