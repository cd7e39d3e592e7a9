"""What can go wrong in a control loop, and what it does then.

One table says both: `KINDS` names every kind of fault with the reactions that make sense for it,
the first of them being the default. A reaction is one of

- "continue": go on as if nothing had happened, and count it. An action out of range has been
  limited; ticks have been skipped after an overrun; an action that could not be applied is lost.
- "hold": send the action that was sent last once more, for `FaultPolicy.hold_limit_s` at most.
- "safe": go to the safe action, over `ActionGuard.ramp_s`, until the policy can act again.
- "stop": end the run, the safe action being sent last; `run` returns its report.
- "raise": the same, but `run` raises a LoopError.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Literal, get_args

from serving.errors import LoopError

Reaction = Literal["continue", "hold", "safe", "stop", "raise"]

FaultKind = Literal[
    "read_error",
    "observation_invalid",
    "observation_stale",
    "policy_error",
    "action_invalid",
    "action_out_of_range",
    "apply_error",
    "overrun",
    "blocked",
]

KINDS: dict[str, tuple[Reaction, ...]] = {
    "read_error": ("raise", "hold", "safe", "stop"),
    "observation_invalid": ("raise", "hold", "safe", "stop"),
    "observation_stale": ("raise", "continue", "hold", "safe", "stop"),
    "policy_error": ("raise", "hold", "safe", "stop"),
    "action_invalid": ("raise", "hold", "safe", "stop"),
    "action_out_of_range": ("continue", "hold", "safe", "stop", "raise"),
    "apply_error": ("raise", "continue", "safe", "stop"),
    "overrun": ("continue", "hold", "safe", "stop", "raise"),
    "blocked": ("raise", "continue", "safe", "stop"),
}
"""Reactions allowed for each kind of fault, the default first."""

MAX_EVENTS = 32


@dataclasses.dataclass(frozen=True)
class FaultPolicy:
    """The reaction to each kind of fault: "continue", "hold", "safe", "stop" or "raise"."""

    read_error: Reaction = "raise"
    """`read` raised."""
    observation_invalid: Reaction = "raise"
    """An observation has another structure, width or dtype, or is not finite."""
    observation_stale: Reaction = "raise"
    """An observation is older than `max_age_s`, or does not say how old it is."""
    policy_error: Reaction = "raise"
    """The runtime failed."""
    action_invalid: Reaction = "raise"
    """The policy gave an action or a carry that is not finite. The step does not count."""
    action_out_of_range: Reaction = "continue"
    """An action is outside its limits; "continue" sends it limited."""
    apply_error: Reaction = "raise"
    """`apply` raised, so that nobody knows what the robot does."""
    overrun: Reaction = "continue"
    """A cycle ended after the next tick was due; "continue" skips the ticks that are past. With
    "hold" and "safe" the next cycle sends that in place of what the policy would say."""
    blocked: Reaction = "raise"
    """A callback or the policy came back after the watchdog had acted; until then the watchdog has
    sent the safe action."""
    hold_limit_s: float = 0.2
    """Longest time in seconds for which an action is held; after it "safe" follows, or "stop" if
    there is no safe action."""

    def __post_init__(self) -> None:
        """Refuses reactions that make no sense.

        Raises:
            LoopError: naming the kind of fault and the reactions it can have.
        """
        for kind, allowed in KINDS.items():
            if (reaction := getattr(self, kind)) not in allowed:
                raise LoopError(
                    f"the reaction to {kind} is {reaction!r}, expected one of {sorted(allowed)}"
                )
        if not 0.0 <= self.hold_limit_s < math.inf:
            raise LoopError(f"hold_limit_s is {self.hold_limit_s!r}, expected at least 0")

    def kinds_with(self, reaction: Reaction) -> list[str]:
        """Returns the kinds of fault that have a reaction."""
        return [kind for kind in KINDS if getattr(self, kind) == reaction]


class Fault(Exception):
    """Something went wrong in a cycle; caught by the loop, which reacts.

    Attributes:
        kind: one of `KINDS`.
        cause: what was raised, or None.
    """

    def __init__(self, kind: FaultKind, message: str, cause: Exception | None = None) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.cause = cause


@dataclasses.dataclass(frozen=True)
class FaultEvent:
    """One fault of a run."""

    kind: FaultKind
    """What went wrong."""
    reaction: Reaction
    """What the loop did."""
    tick: int
    """The tick in whose cycle it was."""
    time_s: float
    """Seconds since the run began."""
    message: str
    """In words."""


class FaultLog:
    """Counts faults and keeps the first and the last of them; constant in size."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(get_args(FaultKind), 0)
        self._first: list[FaultEvent] = []
        self._last: collections.deque[FaultEvent] = collections.deque(maxlen=MAX_EVENTS // 2)

    def add(self, event: FaultEvent) -> None:
        """Counts and keeps a fault."""
        self.counts[event.kind] += 1
        if len(self._first) < MAX_EVENTS // 2:
            self._first.append(event)
        else:
            self._last.append(event)

    def events(self) -> list[FaultEvent]:
        """Returns the first and the last faults, in order."""
        return [*self._first, *self._last]
