"""A real Triton server on loopback, asked by unmodified tritonclients and by ours."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import fleet_client
import numpy as np
import pytest
import tritonclient.grpc
from fleet_checks import batch_sizes, finish, metrics, start_clients, worst_difference
from tritonclient.utils import InferenceServerException

from serving import (
    ControlLoop,
    RemotePolicy,
    SequenceLimitError,
    SequenceLostError,
    ServerError,
    TritonServer,
    load_policy,
)

OUTPUTS = ["action.gripper", "action.joints"]


def ports_of(leaky: Any) -> list[Any]:
    return [[port.name, port.shape, port.dtype] for port in leaky.manifest().observation_ports]


def test_robots_of_several_processes_get_the_actions_of_local_sessions(
    server: TritonServer, leaky: Any, bundle_path: Path, tmp_path: Path
) -> None:
    groups = [("grpc", list(range(32))), ("http", list(range(32, 64)))]
    finish(
        start_clients(
            server, "leaky", ports_of(leaky), groups, steps=12, outputs=OUTPUTS, out=tmp_path
        )
    )
    assert len(list(tmp_path.glob("*.npz"))) == 2
    assert worst_difference(bundle_path, ports_of(leaky), 12, tmp_path) <= 1e-6
    assert max(batch_sizes(server, "leaky")) > 1
    counted = metrics(server)
    labels = '{model="leaky",version="1"}'
    runs = counted[f"nv_inference_exec_count{labels}"]
    assert runs < counted[f"nv_inference_count{labels}"] == 64 * 12
    assert counted['nnx_ppo_sequences{model="leaky"}'] == 0  # all of them have ended


def test_a_client_that_is_killed_harms_no_other_sequence(
    server: TritonServer, leaky: Any, bundle_path: Path, tmp_path: Path
) -> None:
    ports = ports_of(leaky)
    groups = [("grpc", [100, 101]), ("grpc", [102, 103])]
    survivor, victim = start_clients(
        server, "leaky", ports, groups, steps=60, outputs=OUTPUTS, out=tmp_path
    )
    assert victim.stdout is not None and victim.stdout.readline() == "started\n"
    victim.kill()
    victim.communicate()
    finish([survivor])
    assert [file.name for file in tmp_path.iterdir()] == ["100.npz"]
    assert worst_difference(bundle_path, ports, 60, tmp_path) <= 1e-6


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("model", ["leaky", "free"])
def test_a_remote_policy_acts_as_a_session(
    server: TritonServer, leaky: Any, bundle_path: Path, model: str, protocol: Any
) -> None:
    rng = np.random.default_rng(5)
    session = load_policy(bundle_path).session()
    url = getattr(server.addresses, protocol)
    with RemotePolicy(url, model_name=model, protocol=protocol, timeout_s=20.0) as robot:
        assert robot.manifest.name == "leaky" and robot.control_rate_hz == 50.0
        for step in range(10):
            if step in (4, 5):
                robot.reset()
                session.reset()
            observation = leaky.tree(leaky.observe(rng, 1), 0)
            given, expected = robot.step(observation), session.step(observation)
            np.testing.assert_allclose(given["joints"], expected["joints"], atol=1e-6)
            np.testing.assert_allclose(given["gripper"], expected["gripper"], atol=1e-6)
            assert given["gripper"].shape == () and given["joints"].dtype == np.float32
        assert robot.steps == 10


def test_a_control_loop_runs_a_remote_policy(server: TritonServer, leaky: Any) -> None:
    observation = leaky.tree(leaky.observe(np.random.default_rng(6), 1), 0)
    sent: list[Any] = []
    with RemotePolicy(server.addresses.grpc, model_name="leaky", timeout_s=20.0) as robot:
        loop = ControlLoop(robot, lambda: observation, sent.append)
        assert loop.rate_hz == 50.0
        report = loop.run(duration_s=0.2)
        assert report.steps == robot.steps == len(sent) > 0


def test_an_idle_robot_is_told_and_begins_anew(server: TritonServer, leaky: Any) -> None:
    observation = leaky.tree(leaky.observe(np.random.default_rng(6), 1), 0)
    with RemotePolicy(server.addresses.grpc, model_name="small", timeout_s=20.0) as robot:
        first = robot.step(observation)
        robot.step(observation)
        time.sleep(1.2)
        for _ in range(2):
            with pytest.raises(SequenceLostError, match="sequence"):
                robot.step(observation)
        robot.reset()
        np.testing.assert_array_equal(robot.step(observation)["joints"], first["joints"])


def test_one_robot_too_many_is_refused_and_may_come_later(server: TritonServer, leaky: Any) -> None:
    observation = leaky.tree(leaky.observe(np.random.default_rng(6), 1), 0)
    robots = [
        RemotePolicy(server.addresses.http, model_name="small", protocol="http", timeout_s=20.0)
        for _ in range(3)
    ]
    try:
        for robot in robots[:2]:
            robot.step(observation)
        with pytest.raises(SequenceLimitError, match="2 are active, as many as may be"):
            robots[2].step(observation)
        robots[0].close()
        robots[2].step(observation)
    finally:
        for robot in robots:
            robot.close()


def test_a_server_killed_and_started_again_tells_every_client(
    repository: Path, leaky: Any, bundle_path: Path
) -> None:
    observation = leaky.tree(leaky.observe(np.random.default_rng(6), 1), 0)
    server = TritonServer(repository, stop_timeout_s=1.0)
    server.start()
    at = server.addresses
    robots = [RemotePolicy(at.grpc, model_name="leaky", timeout_s=20.0) for _ in range(3)]
    robots += [
        RemotePolicy(at.http, model_name="leaky", protocol="http", timeout_s=20.0) for _ in range(3)
    ]
    free = RemotePolicy(at.http, model_name="free", protocol="http", timeout_s=20.0)
    for robot in (*robots, free):
        robot.step(observation)
    server.kill()
    with pytest.raises(SequenceLostError, match="nobody can say whether the carry has advanced"):
        robots[0].step(observation)
    with pytest.raises(ServerError, match="no answer"):
        free.step(observation)
    server.stop()
    ports = [int(address.rpartition(":")[2]) for address in (at.grpc, at.http, at.metrics)]
    again = TritonServer(
        repository,
        grpc_port=ports[0],
        http_port=ports[1],
        metrics_port=ports[2],
        stop_timeout_s=1.0,
    )
    with again:
        for robot in robots:
            with pytest.raises(SequenceLostError):
                robot.step(observation)
            with pytest.raises(SequenceLostError, match="the sequence is lost since then"):
                robot.step(observation)
        session = load_policy(bundle_path).session()
        first, second = session.step(observation), session.step(observation)
        for robot in robots:
            robot.reset()
            joints = robot.step(observation)["joints"]
            np.testing.assert_allclose(joints, first["joints"], atol=1e-6)
        # Its carry was here all the time.
        np.testing.assert_allclose(free.step(observation)["joints"], second["joints"], atol=1e-6)
        for robot in (*robots, free):
            robot.close()


def test_a_model_process_that_dies_is_told_and_ends_the_wait(repository: Path, leaky: Any) -> None:
    observation = leaky.tree(leaky.observe(np.random.default_rng(6), 1), 0)
    with TritonServer(repository, stop_timeout_s=1.0) as server:
        with RemotePolicy(server.addresses.grpc, model_name="leaky", timeout_s=20.0) as robot:
            robot.step(observation)
            for stub in server._model_processes:
                os.kill(stub, signal.SIGKILL)
            with pytest.raises(SequenceLostError, match="nobody can say"):
                robot.step(observation)
            robot.reset()
            with pytest.raises(ServerError, match="gives no answer"):
                robot.step(observation)
        with pytest.raises(ServerError, match="of a model has ended"):
            server.wait()


def test_wrong_use_of_a_raw_client_gives_an_error_that_says_what_is_wrong(
    server: TritonServer, leaky: Any
) -> None:
    ports = ports_of(leaky)
    seen = fleet_client.observations(ports, 0, 1)

    def message(model: str = "leaky", **options: Any) -> str:
        with tritonclient.grpc.InferenceServerClient(server.addresses.grpc) as client:
            tensors = fleet_client.inputs(tritonclient.grpc, ports, seen, 0)
            with pytest.raises(InferenceServerException) as caught:
                client.infer(model, tensors, **options)
        return str(caught.value)

    assert "must specify the START flag" in message(sequence_id=9)
    assert "non-zero or non-empty correlation ID" in message()
    assert "unknown model" in message("walker", sequence_id=9, sequence_start=True)
    wrong = message(sequence_id=9, sequence_start=True, parameters={"step": 4})
    assert "sequence lost: sequence 9 has made 0 steps here, its client counts 4" in wrong
    seen["obs.goal"][0] = np.nan
    refused = message(sequence_id=9, sequence_start=True)
    assert "observation refused: obs.goal: nan; observations must be finite" in refused
