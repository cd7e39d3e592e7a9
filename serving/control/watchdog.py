"""A second thread that acts when the control thread is stuck in a callback or in the policy.

Python cannot end a call from outside, so the watchdog does not try to: it sends the safe action in
place of the control thread, and goes on doing so at the control rate until that comes back. The two
never send at once, since both hold the same lock while they do, and what the control thread had in
mind when it got stuck is not sent any more: the fault "blocked" takes its place.

Which way the safe action takes depends on where the control thread is stuck:

- in `read` or the policy: through `apply`, called from the watchdog's thread, along the ramp.
- in `apply`: that must not be entered twice, so `apply` cannot be used. Only `emergency`, which has
  to reach the robot by a way of its own (another connection, a line that cuts the motors), can.

`emergency`, if there is one, is used in both cases, once each time: with the safe action, or None.
A callback that is stuck while it holds the GIL (an extension that never releases it) stops the
watchdog as well; only hardware guards against that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from serving.control.realtime import raise_priority
from serving.control.sending import Sender
from serving.control.settings import Watchdog

WATCHED = ("read", "the policy", "apply")


class Guard:
    """The watchdog of one run, as a context.

    Args:
        settings: when it acts, and how.
        sender: sends to the robot, and knows where the control thread is.
        clock: the loop's.
        period_s: time between two actions.
    """

    def __init__(
        self,
        settings: Watchdog,
        sender: Sender,
        *,
        clock: Callable[[], float],
        period_s: float,
    ) -> None:
        self.acts = 0
        """How often it found the control thread stuck."""
        self.notes: list[str] = []
        """What it could not do."""
        self._settings = settings
        self._sender = sender
        self._beat = sender.beat
        self._clock = clock
        self._period_s = period_s
        self._handled = -1
        self._looked_at = -1
        self._looked_s = self._set_back_s = 0.0
        self._done = threading.Event()
        # A daemon: a process that wants to end is not kept by an `apply` that is stuck for ever.
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Guard:
        """Begins to watch."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the watch; waits for what the watchdog is sending, but not for ever."""
        self._done.set()
        self._thread.join(self._settings.timeout_s + 1.0)

    def _watch(self) -> None:
        raise_priority()
        pause_s = self._settings.timeout_s / 4
        while not self._done.wait(pause_s):
            number, phase, since_s = self._beat.state
            stuck_s = self._time_in_phase(number, since_s)
            stuck = phase in WATCHED and stuck_s > self._settings.timeout_s
            pause_s = self._period_s if stuck else self._settings.timeout_s / 4
            if stuck:
                self._act(number, phase)

    def _time_in_phase(self, number: int, since_s: float) -> float:
        """How long a phase has lasted, whatever the clock was set back by since it was entered."""
        now_s = self._clock()
        if number != self._looked_at:
            self._looked_at, self._looked_s, self._set_back_s = number, since_s, 0.0
        self._set_back_s += max(0.0, self._looked_s - now_s)
        self._looked_s = now_s
        return now_s - since_s + self._set_back_s

    def _act(self, number: int, phase: str) -> None:
        first = number != self._handled
        emergency = self._settings.emergency
        if emergency is not None and not first:
            return
        try:
            acted = self._sender.take_over(phase, number, emergency)
        except Exception as error:  # whatever the robot's driver raises: the run's report says it
            acted = True
            if first:
                self.notes.append(f"the watchdog could not act: {type(error).__name__}: {error}")
        if not (acted and first):
            return
        self._handled = number
        self.acts += 1
        if phase == "apply" and emergency is None:
            self.notes.append(
                "apply was blocked, and the watchdog has no other way to the robot; give it an "
                "emergency function"
            )
