"""Runs a session at a fixed rate between two callables."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from serving.control.actions import ActionGuard, ActionPath
from serving.control.checks import checked_step, choose_rate, in_words, is_count, is_positive
from serving.control.faults import Fault, FaultEvent, FaultPolicy
from serving.control.observations import Stamped, fresh_value
from serving.control.report import LoopReport
from serving.control.state import Ended, Limits, Mode, Run
from serving.control.timing import blend, next_tick, policy_is_due, realigned
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
        self._apply = apply
        self._step = checked_step(session)
        self._path = ActionPath(session, actions or ActionGuard(), rate_hz=self.rate_hz)
        self._faults = faults or FaultPolicy()
        if (kinds := self._faults.kinds_with("safe")) and not self._path.has_safe_action:
            raise LoopError(
                f"the reaction to {kinds[0]} is 'safe', but there is no safe action; give one with "
                "ActionGuard(safe_action=...) or in the bundle's metadata"
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
        self._path.restart()
        stopped_by, ended = "interrupt", None
        try:
            with contextlib.ExitStack() as stack:
                run.tally.denormals_flushed = stack.enter_context(flush_denormals())
                run.begin(self._clock())
                try:
                    stopped_by = self._cycle_until(limits, run)
                except Ended as end:
                    stopped_by, ended = end.stopped_by, end
                finally:
                    self._send_safe_action_last(run)
        finally:
            report = self._report = run.tally.report(
                stopped_by,
                now_s=self._clock(),
                rate_hz=self.rate_hz,
                policy_every=self.policy_every,
                rate_limited=self._path.rate_limited,
            )
        if ended is not None and stopped_by == "error":
            raise LoopError(ended.message(report.steps), report) from ended.fault.cause
        return report

    def _cycle_until(self, limits: Limits, run: Run) -> str:
        while True:
            deadline_s = self._wait(run)
            if self._stop.is_set():
                return "stop"
            woken_s = self._clock()
            self._cycle(run)
            now_s = self._clock()
            following = next_tick(run.schedule, run.tick, now_s)
            run.tally.add_cycle(deadline_s, woken_s, now_s, following.skipped)
            if following.skipped:
                fault = Fault("overrun", f"a cycle took {1e3 * (now_s - woken_s):.1f} ms")
                run.override = self._react(run, fault)
            if self._stop.is_set():
                return "stop"
            if limits.steps is not None and run.tally.steps >= limits.steps:
                return "steps"
            run.tick = following.tick
            if limits.ticks is not None and run.tick >= limits.ticks:
                return "duration"

    def _wait(self, run: Run) -> float:
        """Sleeps until the tick is due, and returns when that was."""
        while True:
            now_s = self._clock()
            schedule = realigned(run.schedule, run.tick, now_s)
            if schedule is not run.schedule:
                run.schedule = schedule
                run.tally.clock_steps += 1
            deadline_s = schedule.deadline_s(run.tick)
            if deadline_s <= now_s:
                return deadline_s
            self._sleep(deadline_s - now_s)

    def _cycle(self, run: Run) -> None:
        mode, run.override = run.override, None
        if mode is None and policy_is_due(run.tick, run.policy_tick, self.policy_every):
            try:
                mode = self._decide(run)
            except Fault as fault:
                mode = self._react(run, fault)
        if mode is not None:
            run.mode = mode
        self._send(run)

    def _decide(self, run: Run) -> Mode:
        """Has the policy choose a new action; returns what to send.

        Raises:
            Fault: if there is none to be had.
            Ended: if the run is to end.
        """
        try:
            given = self._read()
        except Exception as error:
            raise Fault("read_error", in_words(error), error) from error
        before_s = self._clock()
        try:
            observation = fresh_value(given, before_s, self._max_age_s)
        except Fault as fault:
            if (mode := self._react(run, fault)) is not None:
                return mode
            observation = given.value if isinstance(given, Stamped) else given
        action = self._step_policy(observation)
        run.tally.step_latency.add(self._clock() - before_s)
        outside = self._path.take(action)
        run.tally.policy_steps += 1
        run.policy_tick = run.tick
        mode = None
        if outside:
            mode = self._react(run, Fault("action_out_of_range", "an element is out of its range"))
        return mode or "follow"

    def _step_policy(self, observation: Any) -> Any:
        try:
            return self._step(observation)
        except ObservationError as error:
            raise Fault("observation_invalid", in_words(error), error) from error
        except ActionError as error:
            raise Fault("action_invalid", in_words(error), error) from error
        except Exception as error:
            raise Fault("policy_error", in_words(error), error) from error

    def _send(self, run: Run) -> None:
        path = self._path
        if run.mode == "hold":
            if self._has_held_long_enough(run):
                if not path.has_safe_action:
                    message = f"held for {self._faults.hold_limit_s} s, and there is no safe action"
                    raise Ended("fault", Fault(run.last_kind, message))
                run.mode = "safe"
            elif not path.has_sent:
                if not path.has_safe_action:
                    return
                run.mode = "safe"
        if run.mode == "follow":
            run.held_since_s = None
            share = blend(run.tick, run.policy_tick or 0, self.policy_every)
            action = path.follow(share if self._interpolates else 1.0)
        elif run.mode == "hold":
            run.tally.held += 1
            action = path.hold()
        else:
            run.tally.safe += 1
            action = path.safe()
        try:
            self._apply(action)
        except Exception as error:
            run.override = self._react(run, Fault("apply_error", in_words(error), error))

    def _has_held_long_enough(self, run: Run) -> bool:
        now_s = self._clock()
        if run.held_since_s is None:
            run.held_since_s = now_s
        return now_s - run.held_since_s > self._faults.hold_limit_s

    def _react(self, run: Run, fault: Fault) -> Mode | None:
        """Counts a fault and returns what to send because of it; None to go on.

        Raises:
            Ended: if the run is to end.
        """
        reaction = getattr(self._faults, fault.kind)
        if reaction == "continue" and fault.kind in _ORDINARY:
            run.tally.faults.counts[fault.kind] += 1
            return None
        time_s = self._clock() - run.tally.start_s
        run.last_kind = fault.kind
        run.tally.faults.add(FaultEvent(fault.kind, reaction, run.tick, time_s, str(fault)))
        if reaction == "stop":
            raise Ended("fault", fault)
        if reaction == "raise":
            raise Ended("error", fault)
        return None if reaction == "continue" else reaction

    def _send_safe_action_last(self, run: Run) -> None:
        """Goes to the safe action, if there is one, and notes how that went."""
        if not self._path.has_safe_action:
            return
        try:
            self._ramp_down(run)
            run.tally.safe_action_sent = True
        except Exception as error:
            run.tally.safe_action_sent = False
            run.tally.notes.append(f"the safe action could not be applied: {in_words(error)}")

    def _ramp_down(self, run: Run) -> None:
        try:
            while True:
                self._apply(self._path.safe())
                if self._path.ramp_is_done:
                    return
                run.tick = next_tick(run.schedule, run.tick, self._clock()).tick
                self._wait(run)
        except KeyboardInterrupt:
            # Someone is in a hurry, but the safe action is still the last one.
            self._path.finish_ramp()
            self._apply(self._path.safe())
            raise
