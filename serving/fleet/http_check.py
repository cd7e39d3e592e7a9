"""What is checked of an HTTP request before a Triton server gets to see it.

Servers up to 2.51 at least make room for a tensor as its `shape` says before they look at the data,
and end when there is not so much memory: one request of a few hundred bytes stops the server. Here
a tensor has at most as many elements as the request has bytes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_JSON_BYTES = 1024 * 1024
"""Of a request's JSON: parsing more would keep others waiting. Large tensors go behind it."""

_MODEL = r"/v2/models/[^/?#\s]+(/versions/[^/?#\s]+)?"
_GET = re.compile(
    rf"/|/v2/?|/v2/health/(live|ready)|/v2/models/stats|{_MODEL}(/(ready|config|stats))?"
)
_POST = re.compile(rf"{_MODEL}/infer")
_SIZE = re.compile(r"[0-9]{1,12}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# All that such requests need; nothing else is handed on.
_KEPT = ("content-type", "inference-header-content-length", "accept", "accept-encoding")

SIZE_OF_JSON = "inference-header-content-length"


class BadRequestError(Exception):
    """A request that is not handed on."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Head:
    """The first part of a request."""

    method: str
    target: str
    headers: dict[str, str]
    """Names in lower case."""
    length: int
    """Bytes of the body."""

    @property
    def keeps_connection(self) -> bool:
        """Whether the client wants to send more requests."""
        return "close" not in self.headers.get("connection", "").lower()

    def to_bytes(self) -> bytes:
        """Returns the head as it is handed on."""
        lines = [f"{self.method} {self.target} HTTP/1.1", "host: localhost"]
        lines += [f"{name}: {self.headers[name]}" for name in _KEPT if name in self.headers]
        lines.append(f"content-length: {self.length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def parse_head(data: bytes) -> Head:
    """Reads and checks the first part of a request.

    Args:
        data: up to and with the empty line.

    Raises:
        BadRequestError: if it is not HTTP/1.1, asks for what is not offered here, or has a body
            whose size is not said, or too large.
    """
    lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequestError(400, "this is no request of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name) or name.lower() in headers:
            raise BadRequestError(400, f"a header is malformed or repeated: {line[:60]!r}")
        headers[name.lower()] = value.strip()
    method, target = words[0], words[1]
    offered = {"GET": _GET, "HEAD": _GET, "POST": _POST}.get(method)
    if offered is None or not offered.fullmatch(target.partition("?")[0]):
        raise BadRequestError(404, f"{method} {target[:100]} is not offered here")
    if "transfer-encoding" in headers or "content-encoding" in headers:
        raise BadRequestError(415, "send the body as it is, with its size in content-length")
    size = headers.get("content-length", "0")
    if not _SIZE.fullmatch(size):
        raise BadRequestError(400, f"content-length is {size[:40]!r}, expected a number of bytes")
    if int(size) > MAX_BODY_BYTES:
        raise BadRequestError(413, f"{size} bytes, at most {MAX_BODY_BYTES} are taken")
    return Head(method, target, headers, int(size))


def check_body(head: Head, body: bytes) -> None:
    """Checks the tensors that an inference request announces.

    Raises:
        BadRequestError: naming the input.
    """
    if head.method != "POST":
        return
    size = head.headers.get(SIZE_OF_JSON, str(len(body)))
    if not _SIZE.fullmatch(size) or int(size) > len(body):
        raise BadRequestError(400, f"{SIZE_OF_JSON} is {size[:40]!r}, the body has {len(body)}")
    if int(size) > MAX_JSON_BYTES:
        raise BadRequestError(413, f"{size} bytes of JSON, at most {MAX_JSON_BYTES} are taken")
    try:
        request = json.loads(body[: int(size)])
    except (ValueError, RecursionError) as error:
        raise BadRequestError(400, f"the request is no JSON: {error}") from error
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list):
        raise BadRequestError(400, "the request has no list of inputs")
    for tensor in inputs:
        if not isinstance(tensor, dict):
            raise BadRequestError(400, "an input is no JSON object")
        _check_shape(str(tensor.get("name"))[:100], tensor.get("shape"), len(body))


def _check_shape(name: str, shape: Any, most: int) -> None:
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise BadRequestError(400, f"input {name!r}: its shape is no list of sizes")
    if len(shape) > 16 or math.prod(shape) > most:
        raise BadRequestError(
            400, f"input {name!r}: the shape {shape[:16]} stands for more than the request holds"
        )
