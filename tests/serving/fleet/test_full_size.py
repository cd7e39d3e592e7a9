"""The fleet at its full size: 64 robots of 500 steps, minutes long."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet_client
import numpy as np
import pytest
from fleet_checks import batch_sizes, finish, metrics, start_clients, worst_difference

from serving import (
    FleetSettings,
    RemotePolicy,
    SequenceLostError,
    TritonServer,
    load_policy,
    read_bundle,
    write_model_repository,
)

pytestmark = pytest.mark.slow

ROBOTS, STEPS = 64, 500


@pytest.fixture(scope="module")
def pole(graph_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    write_model_repository(graph_bundle, root, name="pole", settings=FleetSettings())
    return root


@pytest.fixture
def fleet(pole: Path) -> Iterator[TritonServer]:
    with TritonServer(pole) as running:
        yield running


def ports_of(bundle: Path) -> list[Any]:
    ports = read_bundle(bundle).manifest.observation_ports
    return [[port.name, port.shape, port.dtype] for port in ports]


def test_64_robots_of_500_steps_get_the_actions_of_local_sessions_while_others_are_killed(
    fleet: TritonServer, graph_bundle: Path, tmp_path: Path
) -> None:
    ports = ports_of(graph_bundle)
    groups = [
        (protocol, list(range(16 * index, 16 * index + 16)))
        for index, protocol in enumerate(("grpc", "http", "grpc", "http"))
    ]
    groups += [("grpc", list(range(100, 108))), ("http", list(range(108, 116)))]
    clients = start_clients(
        fleet, "pole", ports, groups, steps=STEPS, outputs=["action"], out=tmp_path
    )
    for victim in clients[4:]:
        assert victim.stdout is not None and victim.stdout.readline() == "started\n"
        time.sleep(1.0)
        victim.kill()
        victim.communicate()
    finish(clients[:4])
    assert len(list(tmp_path.glob("*.npz"))) == 4
    worst = worst_difference(graph_bundle, ports, STEPS, tmp_path)
    sizes = batch_sizes(fleet, "pole")
    labels = '{model="pole",version="1"}'
    counted = metrics(fleet)
    runs = counted[f"nv_inference_exec_count{labels}"]
    actions = counted[f"nv_inference_count{labels}"]
    print(f"\nworst difference {worst:.1e}; {actions:.0f} actions in {runs:.0f} runs: {sizes}")
    assert worst <= 1e-6
    assert actions >= ROBOTS * STEPS and max(sizes) > 8 and runs < actions * 0.8


def test_every_one_of_64_robots_is_told_when_the_server_is_killed(
    fleet: TritonServer, pole: Path, graph_bundle: Path
) -> None:
    """Each drives a local session beside; no action ever differs from that one's."""
    ports = ports_of(graph_bundle)
    addresses = fleet.addresses
    policy = load_policy(graph_bundle)
    sessions = [policy.session() for _ in range(ROBOTS)]
    outcomes: list[Any] = [None] * ROBOTS
    restarted = threading.Event()
    begun = [threading.Event() for _ in range(ROBOTS)]

    def drive(robot: int) -> None:
        protocol: Any = "grpc" if robot % 2 else "http"
        url = addresses.grpc if robot % 2 else addresses.http
        (seen,) = fleet_client.observations(ports, robot, STEPS).values()
        worst, steps, told, later = 0.0, 0, 0, 0
        with RemotePolicy(url, model_name="pole", protocol=protocol, timeout_s=30.0) as remote:
            for step in range(STEPS):
                try:
                    action = remote.step(seen[step])
                except SequenceLostError:
                    told += 1
                    restarted.wait(60.0)
                    with pytest.raises(SequenceLostError):
                        remote.step(seen[step])
                    remote.reset()
                    sessions[robot].reset()
                    action = remote.step(seen[step])
                expected = sessions[robot].step(seen[step])
                worst = max(worst, float(np.abs(action - expected).max()))
                steps += 1
                later += told
                begun[robot].set()
        outcomes[robot] = (worst, steps, told, later)

    threads = [threading.Thread(target=drive, args=(robot,)) for robot in range(ROBOTS)]
    for thread in threads:
        thread.start()
    assert all(event.wait(60.0) for event in begun)
    time.sleep(2.0)
    fleet.kill()
    ports_of_server = [
        int(address.rpartition(":")[2])
        for address in (addresses.grpc, addresses.http, addresses.metrics)
    ]
    fleet.stop()
    again = TritonServer(
        pole,
        grpc_port=ports_of_server[0],
        http_port=ports_of_server[1],
        metrics_port=ports_of_server[2],
    )
    with again:
        restarted.set()
        for thread in threads:
            thread.join(300.0)
    assert None not in outcomes
    print(f"\nworst difference {max(outcome[0] for outcome in outcomes):.1e}")
    assert all(worst <= 1e-6 for worst, _, _, _ in outcomes)
    assert all(steps == STEPS and told == 1 and later > 0 for _, steps, told, later in outcomes)
