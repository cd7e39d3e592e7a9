import io

from nnx_ppo.cli.progress import TrainingProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_silent_when_nobody_watches() -> None:
    stream = io.StringIO()
    progress = TrainingProgress(100, stream=stream)
    progress.update(50, 1.0)
    progress.update(100)
    progress.close()
    assert stream.getvalue() == ""


def test_tells_rate_return_and_time_left_without_the_compilation() -> None:
    stream, clock = Terminal(), Clock()
    progress = TrainingProgress(10_000, stream=stream, clock=clock)
    clock.now = 60.0  # the first iteration compiles for a minute
    progress.update(1000)
    clock.now = 61.0
    progress.update(2000, 12.34)
    last = stream.getvalue().split("\r")[-1]
    assert last.startswith("training  2,000/10,000 steps  1,000 steps/s  return 12.3  0:08 left")


def test_keeps_the_last_return_between_evaluations() -> None:
    clock = Clock()
    progress = TrainingProgress(100, stream=Terminal(), clock=clock)
    progress.update(10, 5.0)
    clock.now = 1.0
    progress.update(20)
    assert "return 5.0" in progress.line(20, clock.now)


def test_redraws_no_more_often_than_the_interval_but_always_at_the_end() -> None:
    stream, clock = Terminal(), Clock()
    progress = TrainingProgress(100, stream=stream, clock=clock, interval_s=1.0)
    for steps in (10, 20, 30):
        clock.now += 0.01
        progress.update(steps)
    assert stream.getvalue().count("\r") == 1
    progress.update(100)
    assert stream.getvalue().count("\r") == 2
    progress.close()
    assert stream.getvalue().endswith("\n")
