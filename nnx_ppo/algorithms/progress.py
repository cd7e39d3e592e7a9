"""Progress of training on a terminal."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

LogFn = Callable[[dict[str, Any], int], Any]

RETURN_METRIC = "eval/episode_reward/mean"
REFRESH_INTERVAL_S = 0.2


class ProgressLog:
    """A ``log_fn`` that shows steps per second, the latest return and the time left.

    Shown on stderr, and only if that is a terminal. Closing happens by itself once all steps are
    taken; where training may fail, use it as a context manager so that the terminal is left tidy.
    """

    def __init__(self, total_steps: int, log_fn: LogFn | None, description: str):
        self._total_steps = total_steps
        self._log_fn = log_fn
        self._description = description
        self._progress: Any = None
        self._task: Any = None
        self._closed = not sys.stderr.isatty()
        self._last_refresh_s = -REFRESH_INTERVAL_S

    def __call__(self, metrics: dict[str, Any], steps: int) -> None:
        """Shows where training stands and hands on to the other ``log_fn``."""
        if not self._closed:
            self._show(metrics, steps)
        if self._log_fn is not None:
            self._log_fn(metrics, steps)

    def close(self) -> None:
        """Ends the display; what it last showed stays on the terminal."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
        self._closed = True

    def __enter__(self) -> "ProgressLog":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _show(self, metrics: Mapping[str, Any], steps: int) -> None:
        if self._progress is None:
            self._progress = _make_progress()
            self._progress.start()
            # A resumed run starts in the middle; its speed counts from there.
            self._task = self._progress.add_task(
                self._description, total=self._total_steps, completed=steps, episode_return="-"
            )
        if RETURN_METRIC in metrics:
            episode_return = f"{float(metrics[RETURN_METRIC]):.1f}"
            self._progress.update(self._task, episode_return=episode_return)
        finished = steps >= self._total_steps
        now_s = time.monotonic()
        if finished or now_s - self._last_refresh_s >= REFRESH_INTERVAL_S:
            # Waiting now and then keeps what is shown close to what is computed, and costs
            # nothing worth mentioning; waiting in each iteration would.
            jax.block_until_ready(list(metrics.values()))
            self._progress.update(self._task, completed=steps)
            self._last_refresh_s = now_s
        if finished:
            self.close()


def make_progress_log_fn(
    total_steps: int, *, log_fn: LogFn | None = None, description: str = "training"
) -> ProgressLog:
    """Returns a ``log_fn`` for ``train_ppo`` that shows progress on the terminal.

    Args:
        total_steps: Environment steps that training will have taken at its end.
        log_fn: Another ``log_fn``, called with the same metrics.
        description: Shown at the start of the line.

    Example:
        >>> with make_progress_log_fn(1_000) as progress:
        ...     progress({}, 500)
    """
    return ProgressLog(total_steps, log_fn, description)


def _make_progress() -> Any:
    try:
        import rich.console
        import rich.progress
    except ImportError as error:
        raise ImportError(
            "showing progress needs rich: pip install 'nnx-ppo-deploy[train]'"
        ) from error

    class StepsPerSecond(rich.progress.ProgressColumn):
        def render(self, task: Any) -> rich.progress.Text:
            speed = task.finished_speed or task.speed
            return rich.progress.Text("- steps/s" if speed is None else f"{speed:,.0f} steps/s")

    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        StepsPerSecond(),
        rich.progress.TextColumn("return {task.fields[episode_return]}"),
        rich.progress.TimeRemainingColumn(),
        console=rich.console.Console(stderr=True),
        refresh_per_second=5,
    )
