"""What tests of a fleet share: client processes, local sessions, the server's counts."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import fleet_client
import numpy as np
import tritonclient.grpc

from serving import TritonServer, load_policy
from serving import tree as trees


def start_clients(
    server: TritonServer,
    model: str,
    ports: list[Any],
    groups: list[tuple[str, list[int]]],
    *,
    steps: int,
    outputs: list[str],
    out: Path,
) -> list[subprocess.Popen[str]]:
    at = {"grpc": server.addresses.grpc, "http": server.addresses.http}
    return [
        subprocess.Popen(
            [
                sys.executable,
                fleet_client.__file__,
                json.dumps(
                    {
                        "protocol": protocol,
                        "url": at[protocol],
                        "model": model,
                        "ports": ports,
                        "outputs": outputs,
                        "robots": robots,
                        "steps": steps,
                        "out": str(out / f"{robots[0]}.npz"),
                    }
                ),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for protocol, robots in groups
    ]


def finish(clients: list[subprocess.Popen[str]]) -> None:
    for client in clients:
        _, said = client.communicate(timeout=600.0)
        assert client.returncode == 0, said


def worst_difference(bundle: Path, ports: list[Any], steps: int, out: Path) -> float:
    """The largest difference to local sessions of all actions in the files of `out`."""
    policy = load_policy(bundle)
    manifest = policy.manifest
    worst = 0.0
    robots = {}
    for file in out.glob("*.npz"):
        robots.update(np.load(file))
    for robot in sorted({int(name.partition("/")[0]) for name in robots}):
        seen = fleet_client.observations(ports, robot, steps)
        session = policy.session()
        for step in range(steps):
            leaves = [
                None if leaf.port is None else seen[leaf.port][step].reshape(leaf.shape)
                for leaf in trees.leaves(manifest.observation)
            ]
            action = session.step(trees.unflatten(manifest.observation, leaves))
            values = trees.flatten(manifest.action, action)
            for leaf, value in zip(trees.leaves(manifest.action), values, strict=True):
                given = robots[f"{robot}/{leaf.port}"][step].reshape(leaf.shape)
                worst = max(worst, float(np.abs(given - value).max()))
    return worst


def batch_sizes(server: TritonServer, model: str) -> dict[int, int]:
    """How many runs there were of each batch size, as the server counts them."""
    with tritonclient.grpc.InferenceServerClient(server.addresses.grpc) as client:
        (stats,) = client.get_inference_statistics(model).model_stats
    return {entry.batch_size: entry.compute_infer.count for entry in stats.batch_stats}


def metrics(server: TritonServer) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{server.addresses.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}
