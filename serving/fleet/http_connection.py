"""The inference protocol over HTTP, with tensors as bytes behind the JSON.

Python's own HTTP client and no other package: it sends a request once. The HTTP client below
tritonclient sends it again when a connection breaks, and a step sent twice is a step made twice.
"""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any

import numpy as np

from serving.fleet.protocol import (
    TYPES,
    Connection,
    Inference,
    RefusedError,
    UnansweredError,
    as_array,
)
from serving.fleet.wording import from_message

_HEADER = "Inference-Header-Content-Length"
_FAULTS = (OSError, http.client.HTTPException)


class HttpConnection(Connection):
    """One connection that is kept open.

    Args:
        url: host:port, with or without `http://` before it.
    """

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("http://").rstrip("/")
        self._connection: http.client.HTTPConnection | None = None

    def model_parameters(self, model: str, timeout_s: float) -> dict[str, str]:
        """See `Connection`."""
        path = f"/v2/models/{urllib.parse.quote(model, safe='')}/config"
        _, body = self._exchange("GET", path, b"", {}, timeout_s)
        parameters = _json(body).get("parameters", {})
        return {key: str(value.get("string_value", "")) for key, value in parameters.items()}

    def infer(self, request: Inference, timeout_s: float) -> dict[str, np.ndarray]:
        """See `Connection`."""
        header = {
            "parameters": dict(request.parameters),
            "inputs": [
                {
                    "name": name,
                    "shape": list(value.shape),
                    "datatype": TYPES[value.dtype.name],
                    "parameters": {"binary_data_size": value.nbytes},
                }
                for name, value in request.inputs
            ],
            "outputs": [
                {"name": name, "parameters": {"binary_data": True}} for name in request.outputs
            ],
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        body = b"".join([text, *(_bytes(value) for _, value in request.inputs)])
        headers = {_HEADER: str(len(text)), "Content-Type": "application/octet-stream"}
        path = f"/v2/models/{urllib.parse.quote(request.model, safe='')}/infer"
        size, answer = self._exchange("POST", path, body, headers, timeout_s)
        return _outputs(answer, size)

    def renew(self) -> None:
        """See `Connection`."""
        self.close()

    def close(self) -> None:
        """See `Connection`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(
        self, method: str, path: str, body: bytes, headers: dict[str, str], timeout_s: float
    ) -> tuple[int | None, bytes]:
        """Sends a request; returns the size of the answer's JSON, if it says so, and the answer."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._address)
            connection = self._connection
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            answer = response.read()
        except (*_FAULTS, ValueError) as error:
            # What is left of the answer must not be taken for that of the next request.
            self.close()
            raise UnansweredError(f"{type(error).__name__}: {error}") from error
        if response.status == 200:
            size = response.getheader(_HEADER)
            return (int(size) if size and size.isdecimal() else None), answer
        message = _error_text(answer) or f"HTTP status {response.status}"
        # The server's own words about what it was given, or our model's; a gateway may say anything
        # else after the request has gone through.
        if from_message(message) is not None or response.status in (400, 404):
            raise RefusedError(message)
        raise UnansweredError(f"HTTP status {response.status}: {message}")


def _outputs(answer: bytes, size: int | None) -> dict[str, np.ndarray]:
    header = _json(answer if size is None else answer[:size])
    position = len(answer) if size is None else size
    outputs: dict[str, np.ndarray] = {}
    try:
        for output in header["outputs"]:
            count = int(output["parameters"]["binary_data_size"])
            content = answer[position : position + count]
            outputs[output["name"]] = as_array(content, output["datatype"], output["shape"])
            position += count
    except (KeyError, TypeError, ValueError) as error:
        raise UnansweredError(f"the answer makes no sense: {error!r}") from error
    return outputs


def _bytes(value: np.ndarray) -> bytes:
    return value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise UnansweredError(f"the answer is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnansweredError("the answer is no JSON object")
    return value


def _error_text(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer[:500].decode("utf-8", "replace").strip()
