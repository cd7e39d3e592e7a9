"""One line that tells how training goes; nothing at all where nobody is watching."""

import sys
import time
from collections.abc import Callable

from nnx_ppo.cli.output import TextStream


class TrainingProgress:
    """Steps, steps per second, last evaluated return and time left, rewritten in place.

    Silent unless the stream is a terminal: a log file full of carriage returns helps nobody.

    Args:
        total_steps: Environment steps that training will take.
        first_step: Where training starts, for a resumed run.
        label: What is trained, put before the line.
        stream: Where to write, standard error if None.
        clock: Seconds, monotonic.
        interval_s: Shortest time between two redraws.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        first_step: int = 0,
        label: str = "training",
        stream: TextStream | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 0.1,
    ) -> None:
        self.total_steps = total_steps
        self.label = label
        self.stream = sys.stderr if stream is None else stream
        self.visible = self.stream.isatty()
        self.clock = clock
        self.interval_s = interval_s
        self.last_return: float | None = None
        # The first iteration compiles; rates are counted from its end, or the time left would be
        # several times too long at first.
        self._first: tuple[int, float] | None = None
        self._start = first_step
        self._drawn_at = -float("inf")

    def update(self, steps: int, episode_return: float | None = None) -> None:
        """Say where training is.

        Args:
            steps: Environment steps taken so far.
            episode_return: Mean return, if an evaluation has just found one.
        """
        if episode_return is not None:
            self.last_return = episode_return
        now = self.clock()
        if self._first is None:
            self._first = (steps, now)
        finished = steps >= self.total_steps
        if not self.visible or (now - self._drawn_at < self.interval_s and not finished):
            return
        self._drawn_at = now
        # \x1b[K clears what a longer line has left behind.
        self.stream.write("\r" + self.line(steps, now) + "\x1b[K")
        self.stream.flush()

    def line(self, steps: int, now: float) -> str:
        """Write the line for one moment."""
        parts = [f"{self.label}  {steps:,}/{self.total_steps:,} steps"]
        first_steps, first_time = self._first or (self._start, now)
        done, elapsed = steps - first_steps, now - first_time
        rate = done / elapsed if done > 0 and elapsed > 0 else None
        if rate is not None:
            parts.append(f"{rate:,.0f} steps/s")
        if self.last_return is not None:
            parts.append(f"return {self.last_return:.1f}")
        if rate is not None:
            left = max(0.0, (self.total_steps - steps) / rate)
            parts.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        else:
            parts.append("compiling")
        return "  ".join(parts)

    def close(self) -> None:
        """End the line, so that what is printed next starts on its own."""
        if self.visible and self._first is not None:
            self.stream.write("\n")
            self.stream.flush()
