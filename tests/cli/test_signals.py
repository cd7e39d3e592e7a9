"""A command that is ended half way leaves nothing half done."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nnx_ppo.cli import main
from nnx_ppo.cli.signals import Ended, ending_signals_raise

NETWORKS = """
import os
import jax
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput


class Ending(StatefulModule):
    def __init__(self, signal):
        self.signal = signal

    def __call__(self, state, obs, extras=None):
        # The export traces the step while it writes.
        if self.signal:
            os.kill(os.getpid(), self.signal)
        return StatefulModuleOutput(state, 2.0 * obs, jax.numpy.zeros(()), {})


def ending(signal):
    return Ending(signal)
"""


def export(number: int) -> list[str]:
    return [
        *("export", "--network", "ending_networks:ending"),
        *("--network-arguments", f'{{"signal": {number}}}', "--observation-shapes", "[3]"),
        *("--formats", "stablehlo", "--out", "new/policy"),
    ]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ending_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ending_networks", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize(
    ("number", "status", "says"),
    [
        (signal.SIGTERM, 143, "nnx-ppo export: ended by SIGTERM"),
        (signal.SIGHUP, 129, "nnx-ppo export: ended by SIGHUP"),
        (signal.SIGINT, 130, "nnx-ppo export: interrupted"),
    ],
)
def test_an_export_ended_half_way_leaves_nothing_behind(
    home: Path, capsys: pytest.CaptureFixture[str], number: int, status: int, says: str
) -> None:
    assert main(export(number)) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == says
    assert not (home / "new").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_a_killed_export_left_is_gone_after_the_next(home: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-m", "nnx_ppo.cli", *export(signal.SIGKILL)],
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (left,) = (home / "new").iterdir()
    assert left.name.startswith(".policy.") and left.name.endswith(".partial")
    assert main(export(0)) == 0
    assert [path.name for path in (home / "new").iterdir()] == ["policy"]


def test_a_second_signal_does_not_cut_the_tidying_up_short() -> None:
    tidied = False
    with pytest.raises(Ended) as ended, ending_signals_raise():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            tidied = True
    assert tidied and ended.value.status == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_may_run_on_another_thread() -> None:
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(main(["inspect", "nowhere"])))
    thread.start()
    thread.join()
    assert statuses == [2]
