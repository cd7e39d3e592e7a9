"""Requests of all wrong kinds, which a server has to refuse and to survive."""

import contextlib
import http.client
import json
import socket
from typing import Any

import fleet_client
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from serving import RemotePolicy, TritonServer

REQUESTS = 600


def http_status(server: TritonServer, path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status of an answer; 0 where the server closed the connection instead."""
    connection = http.client.HTTPConnection(server.addresses.http, timeout=30.0)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    except (ConnectionError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def mangled(rng: np.random.Generator, good: dict[str, Any]) -> dict[str, Any]:
    """A request with one thing wrong, chosen at random."""
    request = json.loads(json.dumps(good))
    tensor = request["inputs"][rng.integers(len(request["inputs"]))]
    kind = rng.integers(12)
    if kind == 0:
        tensor["shape"] = [int(n) for n in rng.integers(-3, 2000, size=rng.integers(0, 5))]
    elif kind == 1:
        tensor["datatype"] = str(rng.choice(["INT8", "FP64", "BYTES", "FP33", "", "BF16"]))
    elif kind == 2:
        tensor["data"] = tensor["data"][: rng.integers(len(tensor["data"]))]
    elif kind == 3:
        tensor["name"] = "obs." + "x" * int(rng.integers(3000))
    elif kind == 4:
        request["inputs"].remove(tensor)
    elif kind == 5:
        request["inputs"].append(tensor)
    elif kind == 6:
        del request["parameters"]["sequence_start"]
    elif kind == 7:
        wrong = [0, -1, 2**70, "", [], {"a": 1}, None, True, 1.5]
        request["parameters"]["sequence_id"] = wrong[rng.integers(len(wrong))]
    elif kind == 8:
        request["parameters"]["step"] = int(rng.integers(1, 2**31))
    elif kind == 9:
        request["outputs"] = [{"name": "actions"}]
    elif kind == 10:
        del tensor[str(rng.choice(sorted(tensor)))]
    else:
        # Strings, and what JSON alone has, where numbers belong.
        tensor["data"] = [["a", None, {}, [[]], 1e400, -(2**80)][rng.integers(6)]]
    return request


def test_hundreds_of_malformed_requests_are_refused_and_harm_nobody(
    server: TritonServer, leaky: Any
) -> None:
    rng = np.random.default_rng(11)
    observation = leaky.tree(leaky.observe(rng, 1), 0)
    pid, path = server.pid, "/v2/models/leaky/infer"
    good = {
        "parameters": {"sequence_id": 77, "sequence_start": True, "sequence_end": True},
        "inputs": [
            {"name": "obs.arm.contact", "datatype": "BOOL", "shape": [1, 2], "data": [True, False]},
            {"name": "obs.arm.position", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
            {"name": "obs.goal", "datatype": "FP32", "shape": [1, 1], "data": [0.5]},
        ],
    }
    header = {"Content-Type": "application/json"}
    assert http_status(server, path, json.dumps(good).encode(), header) == 200
    statuses: list[int] = []
    with RemotePolicy(
        server.addresses.http, model_name="leaky", protocol="http", timeout_s=20.0
    ) as robot:
        before = robot.step(observation)
        for index in range(REQUESTS):
            kind = index % 6
            headers, body, where = dict(header), b"", path
            if kind < 3:
                body = json.dumps(mangled(rng, good)).encode()
            elif kind == 3:
                body = rng.bytes(int(rng.integers(2000)))
                headers["Inference-Header-Content-Length"] = str(rng.integers(-5, 4000))
            elif kind == 4:
                body = json.dumps(good).encode()[: rng.integers(1, 200)]
            else:
                where = f"/v2/models/{rng.integers(10**9)}/infer"
                body = json.dumps(good).encode()
            statuses.append(http_status(server, where, body, headers))
        # The last good step's successor: the sequence is where it was.
        after = robot.step(observation)
        assert not np.array_equal(before["gripper"], after["gripper"])
        assert robot.steps == 2
    # A few are sound after all, such as one whose new shape is its own.
    assert sum(status == 200 for status in statuses) < REQUESTS // 20
    assert sum(status in (0, 400, 404, 500) for status in statuses) > REQUESTS * 0.95
    assert server.pid == pid and server.poll() is None


def test_tensors_larger_than_memory_are_survived(server: TritonServer) -> None:
    """Without the gateway the first of these ends the server of version 2.51."""
    for shape in ([1783, 1472, 910, 609], [1, 2**31 - 1], [2**40], [2**62, 4]):
        tensor = {"name": "obs.goal", "datatype": "FP32", "shape": shape, "data": [0.5]}
        body = json.dumps({"parameters": {"sequence_id": 1}, "inputs": [tensor]}).encode()
        assert http_status(server, "/v2/models/leaky/infer", body, {}) == 400
    assert server.poll() is None


def test_bodies_of_ten_megabytes_are_survived(server: TritonServer) -> None:
    body = np.random.default_rng(1).bytes(10 * 2**20)
    for headers in ({}, {"Inference-Header-Content-Length": "100"}):
        assert http_status(server, "/v2/models/leaky/infer", body, headers) != 200
    tensor = tritonclient.grpc.InferInput("obs.arm.position", [1, 2_621_440], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2_621_440), np.float32))
    with tritonclient.grpc.InferenceServerClient(server.addresses.grpc) as client:
        with pytest.raises(InferenceServerException):
            client.infer("leaky", [tensor], sequence_id=5, sequence_start=True)
        assert client.is_model_ready("leaky") and client.is_server_live()


def test_random_bytes_at_every_port_are_survived(server: TritonServer) -> None:
    rng = np.random.default_rng(2)
    at = server.addresses
    for address in (at.grpc, at.http, at.metrics):
        host, _, port = address.rpartition(":")
        for _ in range(20):
            connection = socket.create_connection((host, int(port)), timeout=5.0)
            with connection, contextlib.suppress(OSError):
                connection.sendall(rng.bytes(int(rng.integers(1, 5000))))
    with tritonclient.grpc.InferenceServerClient(at.grpc) as client:
        assert client.is_server_ready()


def test_raw_messages_of_wrong_size_are_refused_over_grpc(server: TritonServer, leaky: Any) -> None:
    rng = np.random.default_rng(3)
    ports = [[port.name, port.shape, port.dtype] for port in leaky.manifest().observation_ports]
    seen = fleet_client.observations(ports, 0, 1)
    refused = 0
    with tritonclient.grpc.InferenceServerClient(server.addresses.grpc) as client:
        for number in range(60):
            tensors = fleet_client.inputs(tritonclient.grpc, ports, seen, 0)
            tensor = tensors[rng.integers(len(tensors))]
            message: service_pb2.ModelInferRequest.InferInputTensor = tensor._get_tensor()
            if number % 3 == 0:
                tensor._raw_content = rng.bytes(int(rng.integers(40)))
                del message.shape[:]
                message.shape.extend(int(n) for n in rng.integers(-2, 9, size=rng.integers(4)))
            elif number % 3 == 1:
                message.datatype = str(rng.choice(["FP64", "BYTES", "", "INT64"]))
            else:
                tensors.remove(tensor)
            try:
                client.infer("leaky", tensors, sequence_id=300 + number, sequence_start=True)
            except InferenceServerException:
                refused += 1
        assert client.is_model_ready("leaky")
    assert refused > 55
