"""Signals that end a process become exceptions, so that a command leaves nothing half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Ended(KeyboardInterrupt):
    """A signal asks this process to end.

    Whoever tidies up after Ctrl-C does so after this too, since it is one kind of it.

    Attributes:
        name: Name of the signal, such as `SIGTERM`.
        status: The exit status by which a shell knows it: 128 plus its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.status = 128 + number


@contextmanager
def ending_signals_raise() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise `Ended` on the main thread; afterwards they are as before.

    A signal that the caller handles or ignores (`nohup`) stays so. Without effect on other threads,
    which Python lets set no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    candidates = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    taken = [
        number
        for number in candidates
        if number is not None and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    # A second one must not cut short the tidying up that the first one started.
    signal.signal(number, signal.SIG_IGN)
    raise Ended(number)
