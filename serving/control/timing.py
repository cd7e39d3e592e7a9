"""When the ticks of a periodic loop happen. Pure functions: they are told the time, never ask.

Tick k of a schedule is due at start + k * period, for ever: a late tick does not shift those after
it, so the mean rate does not drift. If the work of a tick ends after the next one was due, that one
is skipped, and all others whose time has passed; the loop waits for the first deadline still ahead.
Two ticks are therefore never closer than their deadlines, whatever happened before: an overrun is
never made up for by a burst.

The policy may act at every nth tick only. It has a grid of its own then: slot j are the ticks from
j * n to (j + 1) * n - 1, and the policy acts at the first of them that is run, never twice in one.
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


def realigned(schedule: Schedule, tick: int, now_s: float) -> Schedule:
    """Returns the schedule to go on with before waiting for `tick`.

    A deadline is at most one period ahead when it is chosen. If it is more than two ahead, the
    clock was set back, and waiting would take as long as it was set back by: the deadlines move.

    >>> realigned(Schedule(start_s=100.0, period_s=1.0), 5, now_s=104.2).start_s
    100.0
    >>> realigned(Schedule(start_s=100.0, period_s=1.0), 5, now_s=44.0).start_s
    40.0

    Args:
        schedule: the deadlines.
        tick: the tick to wait for.
        now_s: the time in seconds of the loop's clock.
    """
    if schedule.deadline_s(tick) - now_s <= 2.0 * schedule.period_s:
        return schedule
    return Schedule(now_s + schedule.period_s - tick * schedule.period_s, schedule.period_s)


def policy_is_due(tick: int, last_tick: int | None, every: int) -> bool:
    """Returns whether the policy acts at a tick.

    >>> [tick for tick in (0, 1, 2, 3, 5, 6) if policy_is_due(tick, None, 3)]
    [0, 1, 2, 3, 5, 6]
    >>> policy_is_due(5, 2, 3), policy_is_due(5, 3, 3)  # ticks 3 to 5 are one slot
    (True, False)

    Args:
        tick: the tick being run.
        last_tick: the tick at which it acted last; None if it has not.
        every: ticks in a slot.
    """
    return last_tick is None or tick // every > last_tick // every


def blend(tick: int, began: int, every: int) -> float:
    """Returns how far the way to the newest action has to be gone at a tick, from 0 to 1.

    The way begins with the action sent last when the newest came, is gone at equal steps, and ends
    at the last tick of the slot.

    >>> [blend(tick, 10, 5) for tick in range(10, 15)]
    [0.2, 0.4, 0.6, 0.8, 1.0]
    >>> blend(14, 14, 5)  # the policy was late, and there is no time left
    1.0

    Args:
        tick: the tick being run.
        began: the tick at which the policy acted.
        every: ticks in a slot.
    """
    end = (began // every + 1) * every
    return min(1.0, (tick - began + 1) / (end - began))


def ticks_within(duration_s: float, rate_hz: float) -> int:
    """Returns how many ticks are due in a time, the one at its start included.

    >>> ticks_within(0.3, 10.0)
    3
    """
    return max(1, math.ceil(duration_s * rate_hz - _ROUNDING))
