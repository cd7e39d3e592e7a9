"""How a robot's values become the tensors of a server, and back."""

from __future__ import annotations

import json

import numpy as np

from serving.errors import FleetError, ServerError
from serving.fleet.protocol import Connection
from serving.manifest import Manifest, Port


def connect(url: str, protocol: str) -> Connection:
    """Returns a connection that speaks a protocol.

    Raises:
        FleetError: if the protocol is unknown.
        ServerError: if it needs a package that is not installed.
    """
    if protocol == "http":
        from serving.fleet.http_connection import HttpConnection

        return HttpConnection(url)
    if protocol != "grpc":
        raise FleetError(f"protocol is {protocol!r}, expected 'grpc' or 'http'")
    try:
        from serving.fleet.grpc_connection import GrpcConnection
    except ImportError as error:
        raise ServerError(
            f"the protocol 'grpc' needs tritonclient, which cannot be imported ({error}); install "
            'it with: pip install "nnx-ppo-deploy[triton]", or use protocol="http"'
        ) from error
    return GrpcConnection(url)


def initial_carry(manifest: Manifest, text: str) -> dict[str, np.ndarray]:
    """Reads the carry of a fresh environment from a stateless model's configuration."""
    if not text:
        return {}
    values = json.loads(text)
    return {
        port.name: np.asarray(values[port.name], port.dtype).reshape(port.shape)
        for port in manifest.carry_ports
    }


def row(value: np.ndarray) -> np.ndarray:
    """Adds the batch axis, and to a scalar the axis that a server's tensors always have."""
    return np.ascontiguousarray(value).reshape(1, *(value.shape or (1,)))


def taken(outputs: dict[str, np.ndarray], port: Port, name: str) -> np.ndarray:
    """Returns an output in its port's own shape.

    Raises:
        ServerError: if it has another type or size.
    """
    value = outputs[name]
    if value.dtype != port.dtype or value.size != np.prod(port.shape, dtype=int):
        raise ServerError(
            f"the server gave {name} as {value.dtype}{list(value.shape)}, expected "
            f"{port.dtype}{port.shape}"
        )
    return value.reshape(port.shape)
