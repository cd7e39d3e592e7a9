"""Where a run of a control loop stands, and how it ends."""

from __future__ import annotations

from typing import Any, Literal

from serving.control.faults import KINDS, Fault
from serving.control.report import Tally
from serving.control.timing import Schedule, ticks_within

FAILED = {
    "read_error": "read",
    "observation_invalid": "the policy",
    "policy_error": "the policy",
    "action_invalid": "the policy",
    "apply_error": "apply",
}
KIND_BITS = {kind: 1 << number for number, kind in enumerate(KINDS)}
"""What stands for each kind of fault in a record."""
MODE_NUMBERS = {"follow": 0, "hold": 1, "safe": 2}

Mode = Literal["follow", "hold", "safe"]


class Run:
    """Where a run stands."""

    def __init__(self, period_s: float) -> None:
        self.tally = Tally()
        self.schedule = Schedule(0.0, period_s)
        self.tick = 0
        self.policy_tick: int | None = None
        """The tick at which the policy acted last."""
        self.mode: Mode = "follow"
        self.held_since: tuple[int, float] | None = None
        """Tick and time since which no action of the policy has been sent, because one is held."""
        self.override: Mode | None = None
        """What the next cycle sends in place of asking the policy."""
        self.last_kind: Any = "read_error"
        self.fault_bits = 0
        """Kinds of fault in this cycle, a bit for each."""
        self.dump_reason: str | None = None
        """The fault of this cycle for which the record is worth keeping."""
        self.in_fault = False
        """Whether the record was handed over for a fault that has not ended since."""
        self.ended_by: Fault | None = None
        self.guard: Any = None
        self.signals: Any = None

    def begin(self, now_s: float) -> None:
        self.tally.start_s = now_s
        self.schedule = Schedule(now_s, self.schedule.period_s)

    def move_times(self, by_s: float) -> None:
        """Moves the times that the report counts from, after the clock was set back."""
        self.tally.start_s += by_s
        self.tally.first_s += by_s


def graver(one: Mode | None, other: Mode | None) -> Mode | None:
    """Returns the graver of two reactions to faults of one cycle; None goes on as usual.

    >>> graver("safe", None), graver("hold", "safe")
    ('safe', 'safe')
    """
    return max(one, other, key=lambda mode: -1 if mode is None else MODE_NUMBERS[mode])


class Limits:
    def __init__(self, duration_s: float | None, steps: int | None, rate_hz: float) -> None:
        self.steps = steps
        self.ticks = None if duration_s is None else ticks_within(duration_s, rate_hz)


class Ended(Exception):
    """A fault ends the run."""

    def __init__(self, stopped_by: str, fault: Fault) -> None:
        super().__init__(str(fault))
        self.stopped_by = stopped_by
        self.fault = fault

    def message(self, steps: int) -> str:
        if self.fault.kind in FAILED:
            return f"{FAILED[self.fault.kind]} failed after {steps} steps: {self.fault}"
        return f"stopped after {steps} steps because of {self.fault.kind}: {self.fault}"
