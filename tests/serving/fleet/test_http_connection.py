"""What our HTTP client makes of answers, whole and broken."""

import json
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from serving.fleet.http_connection import HttpConnection
from serving.fleet.protocol import Inference, RefusedError, UnansweredError

REQUEST = Inference(
    "pole",
    [("obs", np.array([[1.0, 2.0]], np.float32)), ("contact", np.array([[True]]))],
    ["action"],
    {"sequence_id": 7, "sequence_start": True, "step": 0},
)
ACTION = np.array([[0.25]], np.float32)


def read_request(connection: socket.socket) -> bytes:
    """A request with its body, which may come in parts."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(2**20)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    (length,) = [int(x.split(b": ")[1]) for x in lines if x.startswith(b"content-length: ")]
    while len(body) < length:
        received = connection.recv(2**20)
        data, body = data + received, body + received
    return data


class Answers:
    """A server that gives the same bytes to everyone and keeps what it was sent."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.answer = b""
        self.received: list[bytes] = []
        self.url = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.received.append(read_request(connection))
                connection.sendall(self.answer)
                if not self.answer:
                    connection.recv(1)  # until the client gives up


@pytest.fixture
def server() -> Iterator[Answers]:
    running = Answers()
    yield running
    running.listener.close()


def respond(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def outputs(content: bytes = ACTION.tobytes(), **changes: object) -> bytes:
    output = {"name": "action", "datatype": "FP32", "shape": [1, 1]}
    output["parameters"] = {"binary_data_size": len(ACTION.tobytes())}
    text = json.dumps({"outputs": [{**output, **changes}]}).encode()
    return respond("200 OK", text + content, f"Inference-Header-Content-Length: {len(text)}")


def ask(server: Answers, timeout_s: float = 5.0) -> dict[str, np.ndarray]:
    connection = HttpConnection(server.url)
    try:
        return connection.infer(REQUEST, timeout_s)
    finally:
        connection.close()


def test_tensors_go_and_come_as_bytes_behind_the_json(server: Answers) -> None:
    server.answer = outputs()
    np.testing.assert_array_equal(ask(server)["action"], ACTION)
    (sent,) = server.received
    head, _, body = sent.partition(b"\r\n\r\n")
    size = int(head.lower().split(b"inference-header-content-length: ")[1].split(b"\r\n")[0])
    document = json.loads(body[:size])
    assert document["parameters"] == {"sequence_id": 7, "sequence_start": True, "step": 0}
    assert [tensor["datatype"] for tensor in document["inputs"]] == ["FP32", "BOOL"]
    assert body[size:] == np.array([1.0, 2.0], np.float32).tobytes() + b"\x01"


@pytest.mark.parametrize(
    "answer",
    [
        outputs(b"\0\0"),
        outputs(shape=[1, 2]),
        outputs(shape="x"),
        outputs(datatype="FP33"),
        outputs(parameters={}),
        outputs(parameters={"binary_data_size": 2}),
        respond("200 OK", b"{"),
        respond("200 OK", b"[]"),
        respond("200 OK", b"{}"),
        respond("200 OK", b"{}", "Inference-Header-Content-Length: x"),
        respond("500 Internal Server Error", b'{"error": "Stub process is not healthy."}'),
        respond("502 Bad Gateway", b"<html>"),
        respond("503 Service Unavailable", b""),
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"\x00\x01\x02\r\n\r\n",
    ],
)
def test_an_answer_that_makes_no_sense_is_none_and_is_asked_for_once(
    server: Answers, answer: bytes
) -> None:
    server.answer = answer
    with pytest.raises(UnansweredError):
        ask(server)
    assert len(server.received) == 1


def test_silence_ends_with_the_time_that_was_given(server: Answers) -> None:
    with pytest.raises(UnansweredError, match="timed out"):
        ask(server, timeout_s=0.2)
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("400 Bad Request", "sequence 7 must specify the START flag"),
        ("404 Not Found", "unknown model"),
        ("500 Internal Server Error", "step failed: the runtime failed: out of memory"),
        ("503 Service Unavailable", "sequence limit: 2 are active"),
    ],
)
def test_a_refusal_is_told_from_a_failure(server: Answers, status: str, message: str) -> None:
    server.answer = respond(status, json.dumps({"error": message}).encode())
    with pytest.raises(RefusedError, match=message):
        ask(server)
