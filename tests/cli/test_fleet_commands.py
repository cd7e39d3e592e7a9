"""`nnx-ppo triton` and `nnx-ppo serve` as a person or a service manager runs them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from nnx_ppo.cli import main
from serving import RemotePolicy, load_policy
from serving.fleet.processes import is_running

SERVE = (sys.executable, "-m", "nnx_ppo.cli", "serve")
FREE = ("--grpc-port", "0", "--http-port", "0", "--metrics-port", "0", "--json")


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [*SERVE, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_document(process: subprocess.Popen[str]) -> dict[str, object]:
    """The JSON document that the command writes while it goes on."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            return json.loads("".join(lines))
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_it_is_told_to_stop(graph_bundle: Path, number: signal.Signals) -> None:
    process = start(graph_bundle, *FREE, "--name", "pole", "--stop-timeout-s", "1")
    try:
        at = read_document(process)
        with urllib.request.urlopen(str(at["ready"])) as answer:
            assert answer.status == 200
        observation = np.ones(4, np.float32)
        session = load_policy(graph_bundle).session()
        with RemotePolicy(str(at["grpc"]), model_name="pole", timeout_s=20.0) as robot:
            for _ in range(5):
                np.testing.assert_allclose(
                    robot.step(observation), session.step(observation), atol=1e-6
                )
        with urllib.request.urlopen(str(at["metrics"])) as answer:
            assert 'nnx_ppo_sequences{model="pole"} 0' in answer.read().decode()
        process.send_signal(number)
        _, said = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0 and f"stopped by {number.name}" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(at["pid"])), 0)


def test_triton_writes_a_repository_and_says_where(
    graph_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "repository"
    arguments = ["triton", str(graph_bundle), "--repository", str(root), "--name", "pole"]
    assert main([*arguments, "--max-sequences", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "pole"
    assert '"max_sequences\\": 7' in (root / "pole" / "config.pbtxt").read_text().replace(
        '\\"max_sequences', '"max_sequences'
    )
    assert main(arguments) == 2
    assert "exists already; choose another --name, or --overwrite it" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--backend", "onnxruntime"]) == 0
    assert main([*arguments, "--overwrite", "--stateless"]) == 0
    wrong = [*arguments, "--overwrite", "--stateless", "--backend", "onnxruntime"]
    assert main(wrong) == 2
    assert "--stateless is a mode of the python backend" in capsys.readouterr().err


def test_a_model_that_does_not_load_is_one_error(
    graph_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "repository"
    assert main(["triton", str(graph_bundle), "--repository", str(root), "--name", "pole"]) == 0
    damaged = root / "pole" / "1" / "bundle" / "initial_carry.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert main(["serve", str(root), *FREE]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "failed to load 'pole' version 1" in said and "initial_carry.safetensors" in said


def test_a_port_that_is_taken_is_named(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(graph_bundle), *FREE[2:], "--grpc-port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port} cannot be listened at" in said


def test_without_a_server_the_command_says_what_to_install(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytriton", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", str(graph_bundle), *FREE]) == 2
    assert "pip install --no-deps nvidia-pytriton" in capsys.readouterr().err


def test_the_server_does_not_outlive_a_command_that_is_killed(graph_bundle: Path) -> None:
    process = start(graph_bundle, *FREE, "--stop-timeout-s", "1")
    server = int(str(read_document(process)["pid"]))
    process.kill()
    process.communicate()
    deadline_s = time.monotonic() + 30.0
    while is_running(server):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_server_that_dies_ends_the_command_with_an_error(graph_bundle: Path) -> None:
    process = start(graph_bundle, *FREE)
    try:
        os.kill(int(str(read_document(process)["pid"])), signal.SIGKILL)
        _, said = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 2
    assert "the server has ended with signal SIGKILL" in said.splitlines()[-1]
