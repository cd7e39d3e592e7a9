"""The loop that `nnx-ppo run` runs, and what it says in the end."""

import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from nnx_ppo.cli import main
from serving import PlantError, serve_plant


def test_the_report_comes_out_although_the_simulator_hangs(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs, listening = threading.Event(), threading.Event()
    steps: list[object] = []
    where: list[str] = []
    errors: list[BaseException] = []
    observation = np.zeros(4, np.float32)

    def step(action):
        steps.append(action)
        if len(steps) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            assert hangs.wait(30.0)
        return observation, np.float32(1.0), False

    def simulate() -> None:
        try:
            serve_plant(
                lambda: observation,
                step,
                address="tcp://127.0.0.1:0",
                accept_timeout_s=30.0,
                on_listening=lambda address: (where.append(address), listening.set()),
            )
        except PlantError as error:
            errors.append(error)

    simulator = threading.Thread(target=simulate, daemon=True)
    simulator.start()
    assert listening.wait(30.0)
    try:
        status = main(["run", str(graph_bundle), "--plant", where[0], "--json"])
    finally:
        hangs.set()
        simulator.join(30.0)
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert status == 128 + signal.SIGTERM
    assert data["loop"]["signal"] == "SIGTERM" and data["loop"]["steps"] == 4
    assert data["plant"] is None
    assert "the simulator gave no summary" in said.err
    assert "ended by SIGTERM" in said.err
    assert not simulator.is_alive()
