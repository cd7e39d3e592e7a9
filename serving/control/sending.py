"""Sends actions to the robot, never two at once, and the safe one last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from serving.control.actions import ActionPath
from serving.control.checks import in_words
from serving.control.faults import Fault
from serving.control.settings import Watchdog
from serving.control.signals import Interrupted
from serving.control.state import Ended, Run
from serving.control.timing import next_tick

PATIENCE_S = 1.0
"""How long the control thread waits for the watchdog to be done with `apply`, and after which a
signal may break off an `apply` of the safe action."""


class Beat:
    """Where the control thread is; written by it, read by the watchdog.

    Attributes:
        state: number of the entry, phase, and when it was entered. Replaced as a whole, so that a
            reader never sees a half of one.
    """

    def __init__(self) -> None:
        self.state: tuple[int, str, float] = (0, "idle", 0.0)

    def enter(self, phase: str, now_s: float) -> None:
        """Notes that a phase begins."""
        self.state = (self.state[0] + 1, phase, now_s)


class Sender:
    """The one way to `apply`, for the control thread and the watchdog.

    Args:
        apply: takes an action.
        path: makes the actions.
        clock: the loop's.
        hold_limit_s: longest time for which an action is held.
    """

    def __init__(
        self,
        apply: Callable[[Any], Any],
        path: ActionPath,
        *,
        clock: Callable[[], float],
        hold_limit_s: float,
    ) -> None:
        self.path = path
        self.beat = Beat()
        self.taken_over: str | None = None
        """The phase in which the watchdog found the control thread stuck; None if it did not."""
        self._emergency_called = False
        self._watchdog_sends = False
        self._apply = apply
        self._clock = self.now_s = clock
        self._hold_limit_s = hold_limit_s
        # An interrupt may come between taking the lock and what would let go of it. The thread that
        # holds it can take it once more, so the safe action is sent all the same.
        self._lock = threading.RLock()

    def restart(self) -> None:
        """Forgets what was sent: a new run begins."""
        self.path.restart()
        self.taken_over = None
        self._emergency_called = False
        if not self._watchdog_sends:
            # An interrupt of the run before may have left the old one taken.
            self._lock = threading.RLock()

    def take(self, action: Any) -> bool:
        """Takes over a new action of the policy; returns whether it was out of its range.

        Raises:
            Fault: if the action is not finite.
        """
        self._acquire()
        try:
            return self.path.take(action)
        finally:
            self._lock.release()

    def is_blocked_in_apply(self) -> bool:
        """Whether the control thread has been in `apply` for longer than it may take."""
        _, phase, since_s = self.beat.state
        return phase == "apply" and self._clock() - since_s > PATIENCE_S

    def complain(self) -> None:
        """Notices that the watchdog has acted while the control thread was stuck.

        Raises:
            Fault: if it has.
        """
        if self.taken_over is not None:
            self._acquire()  # after it is done
            try:
                self._complain_if_taken_over()
            finally:
                self._lock.release()

    def send(self, run: Run, share: float) -> None:
        """Sends what the run's mode asks for.

        Args:
            run: where the run stands.
            share: how much of the way to the newest action is to be gone, from 0 to 1.

        Raises:
            Fault: if `apply` raises, or the watchdog has taken over meanwhile.
            Ended: if nothing may be held any longer and there is no safe action.
        """
        if run.mode == "hold" and not self._may_hold(run):
            return
        self._acquire()
        try:
            self._complain_if_taken_over()
            if run.mode == "follow":
                run.held_since = None
                action = self.path.follow(share)
            elif run.mode == "hold":
                run.tally.held += 1
                action = self.path.hold()
            else:
                run.tally.safe += 1
                action = self.path.safe()
            self._call_apply(action)
            self._complain_if_taken_over()
        finally:
            self._lock.release()

    def send_safe(self) -> None:
        """Sends the next action on the way to the safe one, whatever happened before.

        Raises:
            Exception: what `apply` raises.
        """
        self._acquire()
        try:
            self._call_apply(self.path.safe())
        finally:
            self._lock.release()
            self.beat.enter("idle", self._clock())

    def take_over(self, phase: str, number: int, emergency: Callable[[Any], Any] | None) -> bool:
        """For the watchdog: sends the safe action in place of a control thread that is stuck.

        Args:
            phase: where it is stuck.
            number: of that phase; nothing is done if it has gone on meanwhile.
            emergency: the way to send; None for `apply`, where the control thread is not in it.

        Returns:
            Whether it was still stuck there.

        Raises:
            Exception: what the function used raises.
        """
        if phase == "apply":
            # The control thread holds the lock while it is stuck, and changes nothing.
            self.taken_over = phase
            if emergency is not None:
                self._emergency_called = True
                emergency(self.path.safe_action())
            return True
        # Whoever holds the lock is about to send: not stuck there, or soon stuck in another phase.
        lock = self._lock  # the one of this run, also if another begins before this call is over
        if not lock.acquire(blocking=False):
            return False
        self._watchdog_sends = True
        try:
            if self.beat.state[0] != number:
                return False
            self.taken_over = phase
            if emergency is not None:
                self._emergency_called = True
                emergency(self.path.safe_action())
            else:
                self._apply(self.path.safe())
            return True
        finally:
            self._watchdog_sends = False
            lock.release()

    def _call_apply(self, action: Any) -> None:
        self.beat.enter("apply", self._clock())
        try:
            self._apply(action)
        except Exception as error:
            raise Fault("apply_error", in_words(error), error) from error

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=PATIENCE_S):
            raise Fault("apply_error", "the watchdog is stuck in apply")

    def _complain_if_taken_over(self) -> None:
        if self.taken_over is not None:
            phase, self.taken_over = self.taken_over, None
            # What the policy chose before is old by now: the robot stays where the watchdog has
            # brought it until the policy acts again.
            is_safe = self._emergency_called and self.path.has_safe_action
            self._emergency_called = False
            self.path.drop_newest(is_safe=is_safe)
            raise Fault("blocked", f"{phase} was blocked, and the watchdog had to act")

    def _may_hold(self, run: Run) -> bool:
        """Whether something can be sent; where holding is over, the safe action takes its place."""
        now_s = self._clock()
        if run.held_since is None:
            run.held_since = (run.tick, now_s)
        since_tick, since_s = run.held_since
        # By ticks as well: where the clock was set back it says that no time has passed.
        by_ticks_s = (run.tick - since_tick) * run.schedule.period_s - 1e-9
        too_long = max(now_s - since_s, by_ticks_s) > self._hold_limit_s
        if self.path.has_sent and not too_long:
            return True
        if self.path.has_safe_action:
            run.mode = "safe"
            return True
        if too_long:
            message = f"held for {self._hold_limit_s} s, and there is no safe action"
            raise Ended("fault", Fault(run.last_kind, message))
        return False


def send_safe_action_last(
    sender: Sender, run: Run, wait: Callable[[Run], Any], watchdog: Watchdog | None
) -> None:
    """Goes to the safe action, if there is one, and notes how that went.

    Args:
        sender: sends it.
        run: the run that ends.
        wait: sleeps until the run's tick is due.
        watchdog: whose emergency function is tried if `apply` raises.
    """
    if not sender.path.has_safe_action:
        return
    tally = run.tally
    tally.safe_action_sent = False
    emergency = None if watchdog is None else watchdog.emergency
    try:
        _ramp_down(sender, run, wait)
        tally.safe_action_sent = True
    except (Fault, Interrupted) as error:
        reason = str(error) if isinstance(error, Fault) else "it was blocked, and a signal came"
        tally.notes.append(f"the safe action could not be applied: {reason}")
        if emergency is None:
            return
        try:
            emergency(sender.path.safe_action())
            tally.notes.append("the emergency function was called")
        except Exception as failure:
            tally.notes.append(f"the emergency function failed: {in_words(failure)}")


def _ramp_down(sender: Sender, run: Run, wait: Callable[[Run], Any]) -> None:
    try:
        while True:
            sender.send_safe()
            if sender.path.ramp_is_done:
                return
            run.tick = next_tick(run.schedule, run.tick, sender.now_s()).tick
            wait(run)
    except Interrupted:
        raise  # apply is blocked: trying once more would block again
    except KeyboardInterrupt:
        # Someone is in a hurry, but the safe action is still the last one.
        sender.path.finish_ramp()
        sender.send_safe()
        run.tally.safe_action_sent = True
        raise
