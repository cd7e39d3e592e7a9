"""The demo's other processes: a simulator, one that acts and has no JAX, one that takes times."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.simulate import LISTENING

COMMAND = (sys.executable, "-m", "nnx_ppo.cli")


@contextmanager
def simulator(environment: str, *, seed: int, wait_s: float = 120.0) -> Iterator[str]:
    """Start `nnx-ppo simulate` and give the address at which it serves; ended with the block.

    Raises:
        CommandError: If it ends before it listens; the message is what it said.
    """
    command = [*COMMAND, "simulate", environment, "--seed", str(seed), "--wait-s", str(wait_s)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            if line.startswith(LISTENING):
                yield line.removeprefix(LISTENING).strip()
                break
            said.append(line.strip())
        else:
            raise CommandError(f"the simulator did not start: {' '.join(said)}")
    finally:
        process.terminate()
        process.communicate()


def act(bundle: Path, address: str, *, rate_hz: float, duration_s: float) -> dict[str, Any]:
    """Run `nnx-ppo run` on the bundle's ONNX file and return its report.

    Raises:
        CommandError: If it fails; the message is what it said.
    """
    options = ["--rate-hz", str(rate_hz), "--duration-s", str(duration_s), "--plant", address]
    return _report("run", str(bundle), "--runtime", "onnx", *options)


def bench(bundle: Path, *, steps: int) -> dict[str, dict[str, Any]]:
    """Run `nnx-ppo bench` on the bundle: in a process without the threads that training has left.

    Returns:
        By runtime `median_s`, `p99_s` and `max_s` of one robot's step.

    Raises:
        CommandError: If it fails; the message is what it said.
    """
    results = _report("bench", str(bundle), "--steps", str(steps))["results"]
    return {result["runtime"]: result for result in results}


def _report(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, *arguments, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CommandError(f"nnx-ppo {arguments[0]} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)
