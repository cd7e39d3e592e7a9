import os
import pathlib
import signal
import subprocess
import sys
import time

import interrupted_training
import pytest

from nnx_ppo.algorithms.checkpointing import latest_checkpoint, read_checkpoint_record

SCRIPT = pathlib.Path(__file__).with_name("interrupted_training.py")
ROOT = SCRIPT.parents[3]
MANY_STEPS = 10**6
PATIENCE_S = 180.0


def _start(directory, total_steps):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(directory), str(total_steps)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for_step(directory, process, step):
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise AssertionError(f"training ended by itself: {process.communicate()[1]}")
        latest = latest_checkpoint(directory)
        if latest is not None and int(latest.name.removeprefix("step_")) >= step:
            return
        time.sleep(0.01)
    raise AssertionError(f"no checkpoint of step {step} within {PATIENCE_S} s")


@pytest.mark.usefixtures("quick_compile")
def test_a_run_killed_twice_ends_with_the_weights_of_an_uninterrupted_one(tmp_path):
    steps = interrupted_training.STEPS
    for kill_after in (3 * steps, 20 * steps):
        process = _start(tmp_path, MANY_STEPS)
        try:
            # In each of its steps the process writes a checkpoint, so the kill is likely to meet
            # it doing so.
            _wait_for_step(tmp_path, process, kill_after)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL

    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    reached = read_checkpoint_record(latest).step
    assert reached >= 20 * steps
    resumed = interrupted_training.train(tmp_path, reached + 3 * steps)
    uninterrupted = interrupted_training.train(tmp_path / "none", reached + 3 * steps)
    assert resumed == uninterrupted
