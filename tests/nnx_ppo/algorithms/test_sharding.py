"""Training on several devices and in several processes, compared with one device.

Each run is a process of its own, because the number of devices is fixed when JAX starts.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("sharded_training.py")

# Sums in another order, three iterations with Adam, which divides by the gradients' own size.
MAX_ERROR = 1e-3


def _run(output: Path, devices: int, *, devices_per_process: int, processes: int = 1):
    """Runs the script and returns the numbers of each process."""
    output.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices_per_process}",
    }
    running = []
    for index in range(processes):
        arguments = [sys.executable, str(SCRIPT), str(output), str(devices)]
        if processes > 1:
            arguments += [str(port), str(processes), str(index)]
        running.append(
            subprocess.Popen(
                arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        )
    try:
        for process in running:
            _, errors = process.communicate(timeout=400)
            assert process.returncode == 0, errors.decode()[-4000:]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [dict(np.load(output / f"numbers_{index}.npz")) for index in range(processes)]


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    output = tmp_path_factory.mktemp("one") / "run"
    (numbers,) = _run(output, 0, devices_per_process=1)
    return numbers


def _compare(expected, found):
    """Compares all numbers, and the end of the run with the end reached from its checkpoint."""
    for name, number in found.items():
        if "/again/" in name:
            end = found[name.replace("/again/", "/weights/")]
            np.testing.assert_array_equal(number, end, err_msg=name)
    for name, number in expected.items():
        np.testing.assert_allclose(
            found[name], number, rtol=MAX_ERROR, atol=MAX_ERROR, err_msg=name
        )


def test_eight_devices_give_what_one_gives(on_one_device, tmp_path):
    (numbers,) = _run(tmp_path / "run", 8, devices_per_process=8)
    _compare(on_one_device, numbers)
    # Of 64 environments each device still holds eight when training ends.
    assert list(numbers["spread/mlp"]) == [8]
    assert list(numbers["spread/lstm"]) == [8]
    message = (tmp_path / "run" / "error_0.txt").read_text()
    assert "n_envs=9 environments cannot be divided evenly among the 8 devices" in message


def test_two_processes_give_what_one_device_gives(on_one_device, tmp_path):
    first, second = _run(tmp_path / "run", 4, devices_per_process=2, processes=2)
    _compare(on_one_device, first)
    # Only the first process is told what is going on; both end with the same weights, and both
    # went on from the checkpoint that the first one wrote.
    assert not any("/log/" in name for name in second)
    for name, number in second.items():
        np.testing.assert_array_equal(number, first[name], err_msg=name)
    for name in ("mlp", "lstm"):
        assert any(key.startswith(f"{name}/again/") for key in first)
        assert list(first[f"spread/{name}"]) == [16]
