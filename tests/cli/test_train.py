"""train, resume, export and verify, as a user would chain them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nnx_ppo.cli import main
from serving import read_bundle
from serving.parity_record import read_parity

GRAPH = "nnx_ppo.environments.policies:make_delayed_graph_policy"
SMALL = (
    "--n-envs=16",
    "--rollout-length=10",
    "--n-minibatches=2",
    "--n-epochs=1",
    "--eval-n-envs=4",
    "--eval-max-episode-length=20",
    "--eval-every-steps=320",
    "--checkpoint-every-steps=160",
)
NETWORK = ("--network", GRAPH, "--network-arguments", '{"hidden_size": 8, "sensor_features": 4}')
ENVIRONMENT = ("--environment", "swing_up_delayed")


def result(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> dict[str, Any]:
    assert main([*map(str, argv), "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def run(make_once: Callable[..., Path]) -> Path:
    """The directory of a run of 640 steps. Not to be changed."""

    def make(directory: Path) -> None:
        argv = ["train", *ENVIRONMENT, *NETWORK, *SMALL, "--total-steps=640"]
        assert main([*argv, "--out", str(directory)]) == 0

    return make_once("trained_run", make)


def steps_logged(directory: Path) -> list[int]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def checkpoints(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step_*"))


def test_a_run_leaves_checkpoints_and_a_line_for_each_iteration(run: Path) -> None:
    assert checkpoints(run) == [f"step_{steps:010d}" for steps in range(0, 641, 160)]
    assert steps_logged(run) == [0, 160, 320, 480, 640]
    assert not list(run.rglob("*.partial"))


def test_a_resumed_run_ends_as_an_uninterrupted_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "run"
    shutil.copytree(run, again)
    for later in ("step_0000000480", "step_0000000640"):
        shutil.rmtree(again / later)
    resumed = result(capsys, "train", "--out", again, "--resume")
    assert resumed["steps"] == 640
    assert steps_logged(again) == [0, 160, 320, 320, 480, 640]
    for file in ("networks/state.safetensors", "optimizer/state.safetensors"):
        one, other = (directory / "step_0000000640" / file for directory in (run, again))
        assert one.read_bytes() == other.read_bytes()


def test_a_finished_run_asks_for_more_steps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(run), "--resume"]) == 2
    assert "give a larger --total-steps" in capsys.readouterr().err


def test_a_run_that_was_killed_resumes_from_its_last_complete_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    perceptron = '{"actor_hidden_sizes": [4], "critic_hidden_sizes": [4]}'
    command = [sys.executable, "-m", "nnx_ppo.cli", "train", "--environment", "swing_up", *SMALL]
    command += ["--network-arguments", perceptron, "--no-eval-enabled", "--total-steps=16e6"]
    process = subprocess.Popen(
        [*command, "--out", str(directory)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    deadline_s = time.monotonic() + 240
    while len(checkpoints(directory)) < 4:
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    last = int(checkpoints(directory)[-1].removeprefix("step_"))
    # What else it was writing never got a checkpoint's name, and is not taken for one.
    data = result(capsys, "train", "--out", directory, "--resume", f"--total-steps={last + 160}")
    assert data["steps"] == last + 160
    assert Path(data["checkpoint"]).is_dir()


def test_a_run_becomes_a_bundle_that_is_verified(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "policy"
    exported = result(capsys, "export", run, "--out", bundle, "--formats=onnx,stablehlo")
    assert exported["checkpoint"].endswith("step_0000000640")
    assert set(exported["artefacts"]) == {"onnx", "stablehlo"}
    inspected = result(capsys, "inspect", bundle)
    assert inspected["control_rate_hz"] == 100.0
    few = ("--steps=50", "--batch-sizes=1,3")
    verified = result(capsys, "verify", bundle, "--checkpoint", run, *few)
    assert verified["passed"] is True
    assert (bundle / "parity.json").is_file()
    strict = ("--artefacts=onnx", "--bounds=onnx=1e-12", "--no-write", *few)
    strictly = result(capsys, "verify", bundle, "--checkpoint", run, *strict, status=1)
    bounds = {(c["runtime"], c["tolerance"]) for c in strictly["comparisons"]}
    assert bounds == {("onnx", 1e-12)}
    record = read_parity(bundle)
    assert record is not None and record.passed
    other = ("--network", GRAPH, "--seed=5", "--no-write")
    sizes = json.dumps(
        {"observation_size": 4, "action_size": 1, "hidden_size": 8, "sensor_features": 4}
    )
    failed = result(capsys, "verify", bundle, *other, "--network-arguments", sizes, *few, status=1)
    assert failed["passed"] is False


def test_an_exported_run_acts_on_the_simulator_beside_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nnx_ppo.cli.processes import act, simulator

    bundle = tmp_path / "policy"
    options = ("--formats=onnx", "--disable-passes=take_slots")
    result(capsys, "export", run, "--out", bundle, *options)
    assert read_bundle(bundle).manifest.disabled_passes == ["take_slots"]
    with simulator("swing_up_delayed", seed=3) as address:
        acted = act(bundle, address, rate_hz=100.0, duration_s=0.5)
    # A busy machine may miss some of the 50 deadlines, the last of them after the end.
    assert 0 < acted["loop"]["steps"] <= 50 <= acted["loop"]["steps"] + acted["loop"]["misses"]
    assert acted["plant"]["steps"] == acted["loop"]["steps"]
    assert set(acted["imported"].values()) == {False}
