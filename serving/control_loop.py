"""Runs a session at a fixed rate between two callables."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from serving.denormals import flush_denormals
from serving.distribution import Distribution, Percentiles
from serving.errors import LoopError
from serving.timing import Schedule, next_tick, ticks_within


@dataclasses.dataclass(frozen=True)
class LoopReport:
    """What a control loop did and how well it kept its deadlines."""

    stopped_by: str
    """"duration", "steps", "stop" (asked for), "error" or "interrupt"."""
    rate_hz: float
    """The rate asked for, in Hz."""
    achieved_rate_hz: float
    """Rate between the first and the last step, in Hz; 0 for fewer than two steps."""
    steps: int
    """Cycles completed: observation read, policy stepped, action applied."""
    misses: int
    """Ticks left out because the work before them ended too late."""
    overruns: int
    """Cycles that ended after the next tick was due."""
    elapsed_s: float
    """From the start to the end of the loop, in seconds."""
    step_latency: Percentiles
    """Duration of `session.step`."""
    cycle: Percentiles
    """Duration of a whole cycle, from waking up to the action applied."""
    lateness: Percentiles
    """How late after its deadline a cycle began."""
    denormals_flushed: bool
    """Whether subnormal numbers were flushed to zero on the loop's thread."""

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return dataclasses.asdict(self)


class ControlLoop:
    """Reads an observation, steps the policy and applies the action, at a fixed rate.

    Deadlines are absolute, see `serving.timing`: the rate does not drift, and a cycle that takes
    too long makes the loop skip ticks, never hurry. The session is not reset; `read` and `apply`
    may do that, and may call `stop`.

    Example:
        loop = ControlLoop(session, robot.read, robot.apply, rate_hz=50.0)
        report = loop.run(duration_s=10.0)

    Args:
        session: a `serving.Session`, or anything with its `step`.
        read: returns an observation. Blocks the loop for as long as it takes.
        apply: takes an action; likewise.
        rate_hz: cycles per second; None for the rate in the bundle.
        clock: returns seconds of a clock that never steps back.
        sleep: waits for a number of seconds; may return early.
    """

    def __init__(
        self,
        session: Any,
        read: Callable[[], Any],
        apply: Callable[[Any], Any],
        *,
        rate_hz: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        for name, callback in {"read": read, "apply": apply}.items():
            if not callable(callback):
                raise LoopError(f"{name} is {callback!r}, expected a function")
        self.rate_hz = _choose_rate(session, rate_hz)
        self._session = session
        self._read = read
        self._apply = apply
        self._clock = clock
        self._sleep = sleep
        self._stop = threading.Event()
        self._running = threading.Lock()
        self._report: LoopReport | None = None

    @property
    def report(self) -> LoopReport | None:
        """Report of the last run, however it ended, also by an interrupt; None before the first."""
        return self._report

    def stop(self) -> None:
        """Ends the run after the cycle in progress. May be called from anywhere."""
        self._stop.set()

    def run(self, duration_s: float | None = None, steps: int | None = None) -> LoopReport:
        """Runs the loop on the calling thread until the first limit is met or `stop` is called.

        Args:
            duration_s: seconds after which no further cycle begins; None for no limit.
            steps: number of cycles to complete; None for no limit.

        Returns:
            What was done, and with which timing.

        Raises:
            LoopError: if `read`, the policy or `apply` raised; it carries the report, and the
                exception is its cause. An action that was computed before a failure of `apply` has
                advanced the carry.
        """
        if duration_s is not None and not _is_positive(duration_s):
            raise LoopError(f"duration_s is {duration_s!r}, expected None or a positive number")
        is_count = isinstance(steps, Integral) and not isinstance(steps, bool)
        if steps is not None and not (is_count and steps >= 1):
            raise LoopError(f"steps is {steps!r}, expected None or an integer of at least 1")
        if not self._running.acquire(blocking=False):
            raise LoopError("this loop is running already; make another one for another session")
        try:
            self._stop.clear()
            with flush_denormals() as flushed:
                return self._run(_Limits(duration_s, steps, self.rate_hz), flushed)
        finally:
            self._running.release()

    def _run(self, limits: _Limits, flushed: bool) -> LoopReport:
        record = _Record(self.rate_hz, flushed)
        stopped_by = "interrupt"
        failure: Exception | None = None
        record.start_s = self._clock()
        try:
            stopped_by = self._cycle_until(limits, record)
        except Exception as error:
            stopped_by = "error"
            failure = error
        finally:
            self._report = report = record.report(stopped_by, self._clock())
        if failure is not None:
            raise LoopError(
                f"{record.phase} failed after {record.steps} steps: "
                f"{type(failure).__name__}: {failure}",
                report,
            ) from failure
        return report

    def _cycle_until(self, limits: _Limits, record: _Record) -> str:
        clock = self._clock
        schedule = Schedule(record.start_s, 1.0 / self.rate_hz)
        tick = 0
        while True:
            record.phase = "sleep"
            deadline_s = schedule.deadline_s(tick)
            while (remaining_s := deadline_s - clock()) > 0.0:
                self._sleep(remaining_s)
            if self._stop.is_set():
                return "stop"
            woken_s = clock()
            record.phase = "read"
            observation = self._read()
            record.phase = "the policy"
            before_s = clock()
            action = self._session.step(observation)
            after_s = clock()
            record.phase = "apply"
            self._apply(action)
            now_s = clock()
            following = next_tick(schedule, tick, now_s)
            record.add(deadline_s, woken_s, after_s - before_s, now_s, following.skipped)
            if self._stop.is_set():
                return "stop"
            if limits.steps is not None and record.steps >= limits.steps:
                return "steps"
            tick = following.tick
            if limits.ticks is not None and tick >= limits.ticks:
                return "duration"


class _Limits:
    def __init__(self, duration_s: float | None, steps: int | None, rate_hz: float) -> None:
        self.steps = steps
        self.ticks = None if duration_s is None else ticks_within(duration_s, rate_hz)


class _Record:
    """What a run has done so far; constant in size."""

    def __init__(self, rate_hz: float, flushed: bool) -> None:
        self.rate_hz = rate_hz
        self.flushed = flushed
        self.phase = "sleep"
        self.start_s = 0.0
        self.first_s = self.last_s = 0.0
        self.steps = self.misses = self.overruns = 0
        self.step_latency = Distribution()
        self.cycle = Distribution()
        self.lateness = Distribution()

    def add(
        self, deadline_s: float, woken_s: float, step_s: float, end_s: float, skipped: int
    ) -> None:
        if not self.steps:
            self.first_s = woken_s
        self.last_s = woken_s
        self.steps += 1
        self.misses += skipped
        self.overruns += skipped > 0
        self.step_latency.add(step_s)
        self.cycle.add(end_s - woken_s)
        self.lateness.add(woken_s - deadline_s)

    def report(self, stopped_by: str, now_s: float) -> LoopReport:
        span_s = self.last_s - self.first_s
        return LoopReport(
            stopped_by=stopped_by,
            rate_hz=self.rate_hz,
            achieved_rate_hz=(self.steps - 1) / span_s if span_s > 0 else 0.0,
            steps=self.steps,
            misses=self.misses,
            overruns=self.overruns,
            elapsed_s=now_s - self.start_s,
            step_latency=self.step_latency.summary(),
            cycle=self.cycle.summary(),
            lateness=self.lateness.summary(),
            denormals_flushed=self.flushed,
        )


def _choose_rate(session: Any, rate_hz: float | None) -> float:
    manifest = getattr(session, "manifest", None)
    trained_hz = manifest.control_rate_hz if manifest is not None else None
    chosen = trained_hz if rate_hz is None else rate_hz
    if chosen is None:
        raise LoopError("the bundle does not say a control rate, so rate_hz has to be given")
    if not _is_positive(chosen):
        raise LoopError(f"rate_hz is {chosen!r}, expected a positive number")
    if trained_hz is not None and not math.isclose(chosen, trained_hz, rel_tol=1e-3):
        warnings.warn(
            f"the loop runs at {chosen} Hz, the policy was made for {trained_hz} Hz; recurrent and "
            "delayed state will run at another speed than in training",
            RuntimeWarning,
            stacklevel=3,
        )
    return float(chosen)


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return 0.0 < float(value) < math.inf
