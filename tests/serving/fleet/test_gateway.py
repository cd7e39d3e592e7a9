"""What the gateway hands on to a server, and what it answers itself."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from serving.fleet.gateway import HttpGateway
from serving.fleet.http_check import BadRequestError, check_body, parse_head
from serving.fleet.processes import listen_at

INFER = "/v2/models/pole/infer"


def head_of(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def infer(body: bytes, *headers: str) -> bytes:
    return head_of(f"POST {INFER} HTTP/1.1", f"Content-Length: {len(body)}", *headers) + body


def request_of(shape: object) -> bytes:
    tensor = {"name": "obs", "datatype": "FP32", "shape": shape, "data": [0.5, 1.0]}
    return json.dumps({"inputs": [tensor]}).encode()


class Server:
    """Keeps what it is sent and answers each request with its number."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.received: list[bytes] = []
        self.silent = False
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(2**20):
                self.received.append(data)
                if self.silent:
                    return
                text = f"number {len(self.received)}".encode()
                head = head_of("HTTP/1.1 200 OK", f"Content-Length: {len(text)}")
                connection.sendall(head + text)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.listener.close()


@pytest.fixture
def connection(server: Server) -> Iterator[socket.socket]:
    listener = listen_at("127.0.0.1", 0)
    gateway = HttpGateway(listener, server.listener.getsockname()[1])
    gateway.start()
    with socket.create_connection(listener.getsockname(), timeout=10.0) as client:
        yield client
    gateway.stop()


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(4096)
        assert received, "the connection ended"
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(4096)
    return int(head.split()[1]), body


def test_requests_are_handed_on_in_order_over_one_connection(
    server: Server, connection: socket.socket
) -> None:
    body = request_of([1, 2])
    connection.sendall(infer(body) + head_of("GET /v2/health/ready HTTP/1.1") + infer(body))
    data = b""
    while data.count(b"number") < 3:
        data += connection.recv(4096)
    assert [number in data for number in (b"number 1", b"number 2", b"number 3")] == [True] * 3
    assert all(sent.count(b"\r\n\r\n") == 1 for sent in server.received)


def test_only_what_is_needed_is_handed_on(server: Server, connection: socket.socket) -> None:
    body = request_of([1, 2])
    connection.sendall(infer(body, "X-Secret: 1", f"Inference-Header-Content-Length: {len(body)}"))
    assert read_answer(connection) == (200, b"number 1")
    (sent,) = server.received
    assert b"x-secret" not in sent.lower()
    assert f"inference-header-content-length: {len(body)}".encode() in sent
    assert sent.endswith(body)


@pytest.mark.parametrize(
    "shape",
    [[1783, 1472, 910, 609], [2**31 - 1], [-1, 2], [1e3], [2**70], "12", None, [True], [1] * 17],
)
def test_a_tensor_larger_than_its_request_never_reaches_the_server(
    server: Server, connection: socket.socket, shape: object
) -> None:
    connection.sendall(infer(request_of(shape)))
    status, body = read_answer(connection)
    assert status == 400 and "input 'obs'" in json.loads(body)["error"]
    assert server.received == []


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(
    server: Server, connection: socket.socket
) -> None:
    body = request_of([1, 2])
    whole = infer(body, "Expect: 100-continue")
    connection.sendall(whole[: -len(body)])
    assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
    connection.sendall(body)
    assert read_answer(connection)[0] == 200


def test_a_server_that_breaks_off_is_an_error_and_not_asked_again(
    server: Server, connection: socket.socket
) -> None:
    server.silent = True
    connection.sendall(infer(request_of([1, 2])))
    status, body = read_answer(connection)
    assert status == 502 and b"gives no answer" in body
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (head_of("GET /v2/health/ready"), 400),
        (head_of("GET /v2/health/ready HTTP/2"), 400),
        (head_of("POST /v2/repository/models/pole/unload HTTP/1.1"), 404),
        (head_of("GET /v2/systemsharedmemory/status HTTP/1.1"), 404),
        (head_of("POST /v2/logging HTTP/1.1"), 404),
        (head_of("GET /v2/models/../../etc HTTP/1.1"), 404),
        (head_of("DELETE /v2 HTTP/1.1"), 404),
        (head_of(f"POST {INFER} HTTP/1.1", "Transfer-Encoding: chunked"), 415),
        (head_of(f"POST {INFER} HTTP/1.1", "Content-Encoding: gzip"), 415),
        (head_of(f"POST {INFER} HTTP/1.1", "Content-Length: -5"), 400),
        (head_of(f"POST {INFER} HTTP/1.1", "Content-Length: 1", "content-length: 2"), 400),
        (head_of(f"POST {INFER} HTTP/1.1", "Content-Length : 5"), 400),
        (head_of(f"POST {INFER} HTTP/1.1", "Content-Length: 99999999999"), 413),
        (head_of(f"POST {INFER} HTTP/1.1", "no colon"), 400),
    ],
)
def test_heads_that_are_not_handed_on(head: bytes, status: int) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_head(head)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"[" * 100000, ""),
        (b"[]", ""),
        (b'{"inputs": {}}', ""),
        (b'{"inputs": [1]}', ""),
        (b"{}", "Inference-Header-Content-Length: 3"),
        (b"{}", "Inference-Header-Content-Length: -1"),
        (b" " * (2**20 + 1), ""),
    ],
)
def test_bodies_that_are_not_handed_on(body: bytes, header: str) -> None:
    lines = [f"POST {INFER} HTTP/1.1", f"Content-Length: {len(body)}", *filter(None, [header])]
    with pytest.raises(BadRequestError):
        check_body(parse_head(head_of(*lines)), body)
