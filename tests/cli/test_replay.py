"""run with guards and records, and replay of what it recorded."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import serving
from nnx_ppo.cli import main

ROOT = Path(__file__).resolve().parents[2]


def result(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> dict[str, Any]:
    assert main([*map(str, argv), "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def record(graph_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run that met a NaN left."""
    directory = tmp_path_factory.mktemp("records")
    good = np.linspace(-1.0, 1.0, 4, dtype=np.float32)
    stream = iter([*(good * np.float32(k / 20) for k in range(40)), good * np.float32(np.nan)])
    loop = serving.ControlLoop(
        serving.load_policy(graph_bundle).session(),
        stream.__next__,
        lambda _: None,
        recorder=serving.FlightRecorder(directory),
    )
    with pytest.raises(serving.LoopError):
        loop.run()
    (file,) = directory.iterdir()
    return file


def test_replay_gives_the_same_bits_and_other_runtimes_come_close(
    graph_bundle: Path, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = result(capsys, "replay", record, "--bundle", graph_bundle)
    assert data["passed"] and data["record"]["steps"] == 41
    (report,) = data["runtimes"].values()
    assert report["runtime"] == "onnx" and report["tolerance"] == 0.0 and report["steps"] == 40
    assert [each["identical"] for each in report["passes"]] == [True, True]
    data = result(capsys, "replay", record, "--bundle", graph_bundle, "--runtime", "stablehlo,onnx")
    assert [each["tolerance"] for each in data["runtimes"].values()] == [1e-5, 0.0]
    assert main(["replay", str(record), "--bundle", str(graph_bundle)]) == 0
    captured = capsys.readouterr()
    assert "the same" in captured.out and "observation_invalid" in captured.err


def test_replay_finds_another_action(
    graph_bundle: Path,
    record: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    import safetensors.numpy

    read = serving.read_record(record)
    read.tensors["action/action"][7] += 0.5
    with safetensors.safe_open(record, "numpy") as file:
        about = file.metadata()
    changed = tmp_path / "changed"
    changed.write_bytes(safetensors.numpy.save(read.tensors, about))
    data = result(capsys, "replay", changed, "--bundle", graph_bundle, status=1)
    (report,) = data["runtimes"].values()
    # A busy machine may have skipped ticks before the seventh step.
    tick = int(read.tensors["step/tick"][7])
    assert report["passes"][0]["first_difference"] == tick
    assert main(["replay", str(changed), "--bundle", str(graph_bundle)]) == 1
    assert f"differ from tick {tick}" in capsys.readouterr().out


def test_replay_refuses_what_is_no_record_in_one_line(
    graph_bundle: Path, record: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(record.read_bytes()[:500])
    for file, message in (
        (wrong, "not a valid safetensors file"),
        (tmp_path / "absent", "cannot be read"),
        (tmp_path, "cannot be read"),
        (graph_bundle / "golden.safetensors", "no flight record"),
    ):
        assert main(["replay", str(file), "--bundle", str(graph_bundle)]) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_run_writes_a_record_and_takes_the_guards(
    graph_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", graph_bundle, "--duration-s", 0.3, "--record", tmp_path, "--record-always"]
    argv += ["--policy-every", 2, "--between", "interpolate", "--on", "overrun=hold"]
    argv += ["--freeze-gc", "--record-s", 5]
    loop = result(capsys, *argv)["loop"]
    assert loop["rate_hz"] == 200.0 and loop["policy_every"] == 2
    assert loop["policy_steps"] <= loop["steps"]
    assert loop["settings"][0].startswith("garbage collector: off")
    file = Path(loop["records"][-1])
    assert file.parent == tmp_path
    assert result(capsys, "replay", file, "--bundle", graph_bundle)["passed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "overrun=panic"], "the reactions to overrun are continue, hold"),
        (["--on", "weather=stop"], "the kinds of fault are read_error"),
        (["--record-always"], "needs --record DIR"),
        (["--on", "read_error=safe"], "there is no safe action"),
        (["--cpus", "two"], "no list of numbers"),
        (["--policy-every", "0"], "policy_every is 0"),
    ],
)
def test_run_refuses_guards_that_make_no_sense(
    graph_bundle: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(graph_bundle), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out


def test_run_ends_in_good_order_on_sigterm(graph_bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nnx_ppo.cli", "run", str(graph_bundle), "--json"]
    command += ["--duration-s", "60", "--record", str(tmp_path / "records"), "--record-always"]
    # The loop's own thread says that it runs: the bundle has no plant that would.
    code = (
        "import sys, serving, nnx_ppo.cli\n"
        "step = serving.Session.step\n"
        "def told(self, observation, *, check_outputs=False):\n"
        "    if self.steps == 3: print('running', file=sys.stderr, flush=True)\n"
        "    return step(self, observation, check_outputs=check_outputs)\n"
        "serving.Session.step = told\n"
        f"sys.exit(nnx_ppo.cli.main({command[3:]!r}))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    assert "running" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60.0)
    assert process.returncode == 128 + signal.SIGTERM, errors
    loop = json.loads(output)["loop"]
    assert (loop["stopped_by"], loop["signal"]) == ("signal", "SIGTERM")
    assert len(loop["records"]) == 1 and "ended by SIGTERM" in errors
