"""What a control loop did and how well it kept its deadlines."""

from __future__ import annotations

import dataclasses
from typing import Any

from serving.control.faults import FaultEvent, FaultLog
from serving.distribution import Distribution, Histogram, Percentiles


@dataclasses.dataclass(frozen=True)
class LoopReport:
    """What a control loop did and how well it kept its deadlines."""

    stopped_by: str
    """"duration", "steps", "stop" (asked for), "signal", "fault" (reaction "stop"), "error"
    (reaction "raise") or "interrupt"."""
    rate_hz: float
    """The rate asked for, in Hz."""
    policy_every: int
    """Ticks for each step of the policy."""
    achieved_rate_hz: float
    """Rate between the first and the last step, in Hz; 0 for fewer than two steps."""
    steps: int
    """Cycles completed: an action was sent, of the policy or another."""
    policy_steps: int
    """Steps of the policy that gave an action."""
    held: int
    """Cycles that sent the action before them once more, because of a fault."""
    safe: int
    """Cycles that sent the safe action or one on the way to it, because of a fault."""
    misses: int
    """Ticks left out because the work before them ended too late."""
    overruns: int
    """Cycles that ended after the next tick was due."""
    clock_steps: int
    """How often the clock was found set back."""
    rate_limited: int
    """Actions that the rate limit changed."""
    elapsed_s: float
    """From the start to the end of the loop, in seconds."""
    step_latency: Percentiles
    """Duration of `session.step`."""
    cycle: Percentiles
    """Duration of a whole cycle, from waking up to the action applied."""
    lateness: Percentiles
    """How late after its deadline a cycle began."""
    jitter: Percentiles
    """How much longer or shorter than asked for the time between two cycles was."""
    histograms: dict[str, Histogram]
    """The same four in full, by name."""
    denormals_flushed: bool
    """Whether subnormal numbers were flushed to zero on the loop's thread."""
    faults: dict[str, int]
    """How many faults there were of each kind."""
    fault_events: list[FaultEvent]
    """The first and the last faults."""
    safe_action_sent: bool | None
    """Whether the safe action was the last one sent; None if there is none."""
    watchdog_acts: int = 0
    """How often the watchdog found a callback or the policy stuck."""
    signal: str | None = None
    """Name of the signal that ended the run, if one did."""
    settings: list[str] = dataclasses.field(default_factory=list)
    """What was asked of the system (scheduler, memory, garbage collector), and what came of it."""
    records: list[str] = dataclasses.field(default_factory=list)
    """Flight records written."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What else went wrong, above all while the run ended."""

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return dataclasses.asdict(self)


class Tally:
    """What a run has done so far; constant in size."""

    def __init__(self) -> None:
        self.start_s = 0.0
        self.first_s = self.last_s = 0.0
        self.last_lateness_s: float | None = None
        self.steps = self.policy_steps = self.held = self.safe = 0
        self.misses = self.overruns = self.clock_steps = 0
        self.step_latency = Distribution()
        self.cycle = Distribution()
        self.lateness = Distribution()
        self.jitter = Distribution()
        self.faults = FaultLog()
        self.signal: str | None = None
        self.watchdog_acts = 0
        self.safe_action_sent: bool | None = None
        self.denormals_flushed = False
        self.settings: list[str] = []
        self.records: list[str] = []
        self.notes: list[str] = []

    def add_cycle(self, deadline_s: float, woken_s: float, end_s: float, skipped: int) -> None:
        """Counts a cycle that has ended."""
        if not self.steps:
            self.first_s = woken_s
        self.last_s = woken_s
        self.steps += 1
        self.misses += skipped
        self.overruns += skipped > 0
        self.cycle.add(end_s - woken_s)
        lateness_s = woken_s - deadline_s
        self.lateness.add(lateness_s)
        if self.last_lateness_s is not None:
            self.jitter.add(abs(lateness_s - self.last_lateness_s))
        self.last_lateness_s = lateness_s

    def report(
        self, stopped_by: str, *, now_s: float, rate_hz: float, policy_every: int, rate_limited: int
    ) -> LoopReport:
        """Returns the report of a run that has ended."""
        span_s = self.last_s - self.first_s
        distributions = {
            "step_latency": self.step_latency,
            "cycle": self.cycle,
            "lateness": self.lateness,
            "jitter": self.jitter,
        }
        return LoopReport(
            stopped_by=stopped_by,
            rate_hz=rate_hz,
            policy_every=policy_every,
            achieved_rate_hz=(self.steps - 1) / span_s if span_s > 0 else 0.0,
            steps=self.steps,
            policy_steps=self.policy_steps,
            held=self.held,
            safe=self.safe,
            misses=self.misses,
            overruns=self.overruns,
            clock_steps=self.clock_steps,
            rate_limited=rate_limited,
            elapsed_s=now_s - self.start_s,
            step_latency=self.step_latency.summary(),
            cycle=self.cycle.summary(),
            lateness=self.lateness.summary(),
            jitter=self.jitter.summary(),
            histograms={name: each.histogram() for name, each in distributions.items()},
            denormals_flushed=self.denormals_flushed,
            faults=dict(self.faults.counts),
            fault_events=self.faults.events(),
            safe_action_sent=self.safe_action_sent,
            watchdog_acts=self.watchdog_acts,
            signal=self.signal,
            settings=list(self.settings),
            records=list(self.records),
            notes=list(self.notes),
        )
