"""Runs a session at a fixed rate between two callables."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from serving.control.actions import ActionGuard, ActionPath
from serving.control.checks import (
    check_safe_action,
    checked_step,
    choose_rate,
    in_words,
    is_count,
    is_positive,
)
from serving.control.faults import Fault, FaultEvent, FaultPolicy
from serving.control.observations import Stamped, fresh_value
from serving.control.realtime import RealTime, real_time
from serving.control.record_file import STEP_NOT_RUN, STEP_OK, STEP_REFUSED
from serving.control.recorder import FlightRecorder, Recording
from serving.control.report import LoopReport
from serving.control.sending import Sender, send_safe_action_last
from serving.control.signals import EndingSignals, Interrupted
from serving.control.state import KIND_BITS, Ended, Limits, Mode, Run, graver
from serving.control.timing import blend, next_tick, policy_is_due, realigned
from serving.control.watchdog import Guard, Watchdog
from serving.denormals import flush_denormals
from serving.errors import ActionError, LoopError, ObservationError

# Counted only while the loop goes on: both may happen in every cycle of a healthy run.
_ORDINARY = ("action_out_of_range", "overrun")


class ControlLoop:
    """Reads an observation, steps the policy and applies the action, at a fixed rate.

    Deadlines are absolute, see `serving.control.timing`: the rate does not drift, and a cycle that
    takes too long makes the loop skip ticks, never hurry. The session is not reset; `read` and
    `apply` may do that, and may call `stop`.

    What happens when something goes wrong is in `FaultPolicy`. However a run ends, the safe action
    is the last one that `apply` gets, if there is one: in `actions`, or in the bundle's metadata.

    Example:
        loop = ControlLoop(session, robot.read, robot.apply, rate_hz=50.0)
        report = loop.run(duration_s=10.0)

    Args:
        session: a `serving.Session`, or anything with its `step`.
        read: returns an observation, or a `Stamped` one. Blocks the loop for as long as it takes.
        apply: takes an action; likewise.
        rate_hz: cycles per second; None for the rate in the bundle, times `policy_every`.
        policy_every: ticks for each step of the policy: 10 for actions sent at 500 Hz of a policy
            that acts at 50 Hz. `read` is called when the policy acts, `apply` in every cycle.
        between: what is sent in the ticks between: "hold" sends the newest action again;
            "interpolate" goes to it in equal steps from the action sent last when it came, and
            reaches it in the last tick before the policy acts again, so a policy period later.
        max_age_s: oldest observation allowed, in seconds when `read` has returned it.
        actions: scaling, limits and safe action.
        faults: the reaction to each kind of fault.
        watchdog: acts when a callback or the policy is stuck; None for no watchdog.
        recorder: keeps the last seconds and writes them to a file after a fault; None for none.
        real_time: what to ask of the system for the time of a run; None for nothing.
        handle_signals: end the run in good order on SIGINT and SIGTERM. Possible on the main thread
            only; the report then says which signal it was.
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
        policy_every: int = 1,
        between: Literal["hold", "interpolate"] = "hold",
        max_age_s: float | None = None,
        actions: ActionGuard | None = None,
        faults: FaultPolicy | None = None,
        watchdog: Watchdog | None = None,
        recorder: FlightRecorder | None = None,
        real_time: RealTime | None = None,
        handle_signals: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        for name, callback in {"read": read, "apply": apply}.items():
            if not callable(callback):
                raise LoopError(f"{name} is {callback!r}, expected a function")
        if not is_count(policy_every):
            raise LoopError(f"policy_every is {policy_every!r}, expected an integer of at least 1")
        if between not in ("hold", "interpolate"):
            raise LoopError(f"between is {between!r}, expected 'hold' or 'interpolate'")
        if max_age_s is not None and not is_positive(max_age_s):
            raise LoopError(f"max_age_s is {max_age_s!r}, expected None or a positive number")
        self.policy_every = int(policy_every)
        self.rate_hz = choose_rate(session, rate_hz, self.policy_every)
        self._interpolates = between == "interpolate"
        self._max_age_s = max_age_s
        self._read = read
        self._step = checked_step(session)
        self._faults = faults or FaultPolicy()
        self._path = ActionPath(session, actions or ActionGuard(), rate_hz=self.rate_hz)
        check_safe_action(self._path.has_safe_action, self._faults, watchdog)
        self._sender = Sender(
            apply, self._path, clock=clock, hold_limit_s=self._faults.hold_limit_s
        )
        self._watchdog = watchdog
        self._real_time = real_time
        self._handles_signals = handle_signals
        self._recording: Recording | None = None
        if recorder is not None:
            self._recording = Recording(
                recorder,
                session,
                rate_hz=self.rate_hz,
                policy_every=self.policy_every,
                action_size=self._path.size,
            )
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

    def dump_record(self) -> None:
        """Has what is recorded written after the cycle in progress. May be called from anywhere.

        Another thread writes it, and the loop goes on.

        Raises:
            LoopError: if the loop has no recorder.
        """
        if self._recording is None:
            raise LoopError("there is no record; give the loop a FlightRecorder")
        self._recording.wanted = True

    def run(self, duration_s: float | None = None, steps: int | None = None) -> LoopReport:
        """Runs the loop on the calling thread until the first limit is met or `stop` is called.

        Args:
            duration_s: seconds after which no further cycle begins; None for no limit.
            steps: number of cycles to complete; None for no limit.

        Returns:
            What was done, and with which timing.

        Raises:
            LoopError: if there was a fault to which the reaction is "raise", after the safe action
                was sent; it carries the report, and what a callback or the policy raised is its
                cause. An action that was computed before a failure of `apply` has advanced the
                carry.
        """
        if duration_s is not None and not is_positive(duration_s):
            raise LoopError(f"duration_s is {duration_s!r}, expected None or a positive number")
        if steps is not None and not is_count(steps):
            raise LoopError(f"steps is {steps!r}, expected None or an integer of at least 1")
        if not self._running.acquire(blocking=False):
            raise LoopError("this loop is running already; make another one for another session")
        try:
            self._stop.clear()
            return self._run(Limits(duration_s, steps, self.rate_hz))
        finally:
            self._running.release()

    def _run(self, limits: Limits) -> LoopReport:
        run = Run(1.0 / self.rate_hz)
        run.begin(self._clock())
        self._sender.restart()
        stopped_by, ended = "interrupt", None
        try:
            with contextlib.ExitStack() as stack:
                tally = run.tally
                tally.denormals_flushed = stack.enter_context(flush_denormals())
                if self._recording is not None:
                    # Before the thread becomes real-time, which the one that writes must not be.
                    self._recording.start(denormals_flushed=tally.denormals_flushed)
                    stack.callback(self._recording.close, run)
                tally.settings = stack.enter_context(real_time(self._real_time))
                if self._watchdog is not None:
                    run.guard = stack.enter_context(
                        Guard(
                            self._watchdog,
                            self._sender,
                            clock=self._clock,
                            period_s=1.0 / self.rate_hz,
                        )
                    )
                if self._handles_signals:
                    run.signals = stack.enter_context(
                        EndingSignals(self._sender.is_blocked_in_apply)
                    )
                run.begin(self._clock())
                try:
                    try:
                        stopped_by = self._cycle_until(limits, run)
                    finally:
                        if run.signals is not None:
                            run.signals.disarm()
                except Ended as end:
                    stopped_by, ended = end.stopped_by, end
                    run.ended_by = end.fault
                except Interrupted:
                    stopped_by = "signal"
                finally:
                    send_safe_action_last(self._sender, run, self._wait, self._watchdog)
        finally:
            report = self._report = self._summarize(run, stopped_by)
        if ended is not None and stopped_by == "error":
            raise LoopError(ended.message(report.steps), report) from ended.fault.cause
        return report

    def _cycle_until(self, limits: Limits, run: Run) -> str:
        while True:
            deadline_s = self._wait(run)
            if (asked := self._asked_to_end(run)) is not None:
                return asked
            woken_s = self._clock()
            try:
                self._cycle(run)
            finally:
                now_s = self._clock()
                self._sender.beat.enter("idle", now_s)
                following = next_tick(run.schedule, run.tick, now_s)
                if following.skipped:
                    run.fault_bits |= KIND_BITS["overrun"]
                if self._recording is not None:
                    self._recording.after_tick(run, deadline_s, woken_s, now_s, self._path.sent)
            run.tally.add_cycle(deadline_s, woken_s, now_s, following.skipped)
            if following.skipped:
                late_ms, took_ms = 1e3 * (woken_s - deadline_s), 1e3 * (now_s - woken_s)
                message = f"a cycle began {late_ms:.1f} ms late and took {took_ms:.1f} ms"
                fault = Fault("overrun", message)
                run.override = graver(run.override, self._react(run, fault))
            if self._recording is not None:
                self._recording.after_cycle(run)
            if (asked := self._asked_to_end(run)) is not None:
                return asked
            if limits.steps is not None and run.tally.steps >= limits.steps:
                return "steps"
            run.tick = following.tick
            if limits.ticks is not None and run.tick >= limits.ticks:
                return "duration"

    def _asked_to_end(self, run: Run) -> str | None:
        if run.signals is not None and run.signals.received is not None:
            return "signal"
        return "stop" if self._stop.is_set() else None

    def _wait(self, run: Run) -> float:
        """Sleeps until the tick is due, and returns when that was."""
        while True:
            now_s = self._clock()
            schedule = realigned(run.schedule, run.tick, now_s)
            if schedule is not run.schedule:
                run.move_times(schedule.start_s - run.schedule.start_s)
                run.schedule = schedule
                run.tally.clock_steps += 1
            deadline_s = schedule.deadline_s(run.tick)
            if deadline_s <= now_s:
                return deadline_s
            self._sleep(deadline_s - now_s)

    def _cycle(self, run: Run) -> None:
        mode, run.override = run.override, None
        run.fault_bits = 0
        if mode is None and policy_is_due(run.tick, run.policy_tick, self.policy_every):
            try:
                mode = self._decide(run)
            except Fault as fault:
                mode = self._react(run, fault)
        if mode is not None:
            run.mode = mode
        share = 1.0
        if self._interpolates:
            share = blend(run.tick, run.policy_tick or 0, self.policy_every)
        try:
            self._sender.send(run, share)
        except Fault as fault:
            run.override = self._react(run, fault)

    def _decide(self, run: Run) -> Mode:
        """Has the policy choose a new action; returns what to send.

        Raises:
            Fault: if there is none to be had.
            Ended: if the run is to end.
        """
        beat = self._sender.beat
        beat.enter("read", self._clock())
        try:
            given = self._read()
        except Exception as error:
            raise Fault("read_error", in_words(error), error) from error
        before_s = self._clock()
        beat.enter("idle", before_s)
        self._sender.complain()
        try:
            observation = fresh_value(given, before_s, self._max_age_s)
        except Fault as fault:
            if (mode := self._react(run, fault)) is not None:
                return mode
            observation = given.value if isinstance(given, Stamped) else given
        if self._recording is not None:
            self._recording.before_step(run.tick, before_s)
        beat.enter("the policy", before_s)
        action = self._step_policy(observation)
        after_s = self._clock()
        beat.enter("idle", after_s)
        run.tally.step_latency.add(after_s - before_s)
        if self._recording is not None:
            self._recording.after_step(STEP_OK)
        outside = self._sender.take(action)
        run.tally.policy_steps += 1
        run.policy_tick = run.tick
        mode = None
        if outside:
            mode = self._react(run, Fault("action_out_of_range", "an element is out of its range"))
        return mode or "follow"

    def _step_policy(self, observation: Any) -> Any:
        try:
            return self._step(observation)
        except Exception as error:
            self._sender.beat.enter("idle", self._clock())
            refused = isinstance(error, ActionError)
            if self._recording is not None:
                self._recording.after_step(STEP_REFUSED if refused else STEP_NOT_RUN)
            kind = "action_invalid" if refused else "policy_error"
            if isinstance(error, ObservationError):
                kind = "observation_invalid"
            raise Fault(kind, in_words(error), error) from error

    def _react(self, run: Run, fault: Fault) -> Mode | None:
        """Counts a fault and returns what to send because of it; None to go on.

        Raises:
            Ended: if the run is to end.
        """
        reaction = getattr(self._faults, fault.kind)
        run.fault_bits |= KIND_BITS[fault.kind]
        if reaction == "continue" and fault.kind in _ORDINARY:
            run.tally.faults.counts[fault.kind] += 1
            return None
        time_s = self._clock() - run.tally.start_s
        run.last_kind = fault.kind
        run.dump_reason = f"{fault.kind}: {fault}"
        run.tally.faults.add(FaultEvent(fault.kind, reaction, run.tick, time_s, str(fault)))
        if reaction == "stop":
            raise Ended("fault", fault)
        if reaction == "raise":
            raise Ended("error", fault)
        return None if reaction == "continue" else reaction

    def _summarize(self, run: Run, stopped_by: str) -> LoopReport:
        tally = run.tally
        if run.signals is not None:
            tally.signal = run.signals.name
        if run.guard is not None:
            tally.watchdog_acts = run.guard.acts
            tally.notes += run.guard.notes
        return tally.report(
            stopped_by,
            now_s=self._clock(),
            rate_hz=self.rate_hz,
            policy_every=self.policy_every,
            rate_limited=self._path.rate_limited,
        )
