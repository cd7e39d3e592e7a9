import subprocess
import sys

import jax.numpy as jp
import pytest

from nnx_ppo.algorithms.progress import make_progress_log_fn


class Terminal:
    """Something that calls itself a terminal and keeps what is written to it."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass


def test_nothing_is_written_and_rich_not_imported_where_there_is_no_terminal():
    script = (
        "import sys\n"
        "from nnx_ppo.algorithms.progress import make_progress_log_fn\n"
        "seen = []\n"
        "log = make_progress_log_fn(10, log_fn=lambda metrics, steps: seen.append(steps))\n"
        "log({}, 5); log({}, 10)\n"
        "assert seen == [5, 10]\n"
        "assert 'rich' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == ""
    assert result.stderr == ""


def test_a_terminal_shows_speed_return_and_time_left(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    seen = []
    log = make_progress_log_fn(
        10_000, log_fn=lambda metrics, steps: seen.append(steps), description="swing up"
    )
    log({"eval/episode_reward/mean": jp.float32(12.34)}, 0)
    log({"losses/actor/mean": jp.float32(0.0)}, 5_000)
    log({}, 10_000)
    assert seen == [0, 5_000, 10_000]
    for part in ("swing up", "10,000/10,000", "steps/s", "return 12.3"):
        assert part in terminal.text
    log({}, 20_000)  # after its end it only hands on
    assert seen[-1] == 20_000


def test_the_terminal_is_left_tidy_after_a_failure(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(RuntimeError), make_progress_log_fn(10_000) as log:
        log({}, 100)
        raise RuntimeError
    assert terminal.text.endswith("\n\x1b[?25h")  # the cursor is visible again
