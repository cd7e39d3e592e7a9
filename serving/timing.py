"""When the ticks of a periodic loop happen. Pure functions: they are told the time, never ask.

Tick k of a schedule is due at start + k * period, for ever: a late tick does not shift those after
it, so the mean rate does not drift. If the work of a tick ends after the next one was due, that one
is skipped, and all others whose time has passed; the loop waits for the first deadline still ahead.
Two ticks are therefore never closer than their deadlines, whatever happened before: an overrun is
never made up for by a burst.
"""

from __future__ import annotations

import dataclasses
import math

# Far below any jitter, far above the rounding of a clock's seconds since the machine started.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Deadlines of a loop."""

    start_s: float
    """Deadline of tick 0 in seconds of the loop's clock."""
    period_s: float
    """Time between deadlines in seconds."""

    def deadline_s(self, tick: int) -> float:
        """Returns when a tick is due, in seconds of the loop's clock.

        >>> Schedule(start_s=5.0, period_s=0.5).deadline_s(4)
        7.0
        """
        return self.start_s + tick * self.period_s


@dataclasses.dataclass(frozen=True)
class NextTick:
    """What to do after a tick."""

    tick: int
    """Number of the tick to run next."""
    skipped: int
    """How many ticks before it are left out because their time has passed."""


def next_tick(schedule: Schedule, tick: int, now_s: float) -> NextTick:
    """Chooses the tick to run after `tick` has been worked off.

    >>> next_tick(Schedule(start_s=0.0, period_s=1.0), 3, now_s=3.9)
    NextTick(tick=4, skipped=0)
    >>> next_tick(Schedule(start_s=0.0, period_s=1.0), 3, now_s=5.2)
    NextTick(tick=6, skipped=2)

    Args:
        schedule: the deadlines.
        tick: the tick whose work has just ended.
        now_s: the time in seconds of the loop's clock.

    Returns:
        The first tick after `tick` whose deadline is not in the past.
    """
    elapsed = (now_s - schedule.start_s) / schedule.period_s
    upcoming = max(tick + 1, math.ceil(elapsed - _ROUNDING))
    return NextTick(upcoming, upcoming - tick - 1)


def ticks_within(duration_s: float, rate_hz: float) -> int:
    """Returns how many ticks are due in a time, the one at its start included.

    >>> ticks_within(0.3, 10.0)
    3
    """
    return max(1, math.ceil(duration_s * rate_hz - _ROUNDING))
