"""SIGINT and SIGTERM end a run in good order.

The first signal ends the run after the cycle in progress. Python delivers a signal between two of
its instructions and then goes back to a call that waits, so a `read` that is stuck would never
notice. Therefore a thread sends the signal once more when the run has not ended after a grace
period, and the second one raises an exception wherever the control thread is. So does a second
signal from outside. Once the safe action is on its way, signals change nothing any more, unless
`apply` is blocked with it: a signal that comes then breaks it off.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from serving.errors import LoopError

ENDING = ("SIGINT", "SIGTERM")
GRACE_S = 1.0


class Interrupted(KeyboardInterrupt):
    """A run that was asked to end by a signal has not done so in time."""


class EndingSignals:
    """Inside, SIGINT and SIGTERM end the run; afterwards they do what they did before.

    A signal that the process ignores stays ignored.

    Attributes:
        received: number of the first signal that came; None if none did.

    Args:
        is_blocked: asked when a signal comes after `disarm`; True to interrupt all the same.
        grace_s: seconds after which a run that has not ended is interrupted.
    """

    def __init__(
        self, is_blocked: Callable[[], bool] = lambda: False, *, grace_s: float = GRACE_S
    ) -> None:
        self._is_blocked = is_blocked
        self.received: int | None = None
        self._grace_s = grace_s
        self._before: dict[int, object] = {}
        self._armed = False
        self._done = threading.Event()

    @property
    def name(self) -> str | None:
        """Name of the first signal that came."""
        return None if self.received is None else signal.Signals(self.received).name

    def __enter__(self) -> EndingSignals:
        """Takes the signals over.

        Raises:
            LoopError: on another thread than the main one, which alone can do that.
        """
        if threading.current_thread() is not threading.main_thread():
            raise LoopError(
                "signals can be handled on the main thread only; run the loop there, or handle "
                "them yourself and call stop"
            )
        # A pipe and not an event: a handler that waits for a lock held by the code that it
        # interrupts would wait for ever.
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._press, name="ending signals", daemon=True)
        self._thread.start()
        self._armed = True
        for name in ENDING:
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def disarm(self) -> None:
        """From here on signals are noted and change nothing, as long as nothing is blocked."""
        self._armed = False
        self._done.set()

    def __exit__(self, *_: object) -> None:
        """Puts the former handlers back."""
        self.disarm()
        # The thread first: what it sends must still meet our handler.
        os.write(self._writer, b"e")
        self._thread.join()
        for number, handler in self._before.items():
            # None stands for a handler that was not installed from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # pyright: ignore
        os.close(self._reader)
        os.close(self._writer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        if first:
            self.received = number
            os.write(self._writer, b"s")
        if (self._armed and not first) or (self._done.is_set() and self._is_blocked()):
            self._armed = False
            raise Interrupted

    def _press(self) -> None:
        main = threading.main_thread().ident
        if os.read(self._reader, 1) == b"s":
            if not self._done.wait(self._grace_s) and main is not None and self.received:
                signal.pthread_kill(main, self.received)
            os.read(self._reader, 1)
