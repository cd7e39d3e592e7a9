"""Messages between a control process and a simulated plant: MessagePack behind a length.

A message is four bytes of length, little endian, and that many bytes of MessagePack: a map with the
key `kind`. Arrays are extension type 1, itself MessagePack of [dtype, shape, bytes].

Limits: `MAX_MESSAGE_BYTES` for a message, `MAX_RANK` axes of an array, element types that NumPy has
and safetensors too. Both sides use this module, and what comes in is checked as if a stranger had
sent it.
"""

from __future__ import annotations

import math
import socket
import struct
from typing import Any

import msgspec
import numpy as np

from serving.errors import PlantError
from serving.manifest_checks import DTYPES

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_RANK = 16

_ARRAY = 1
_LENGTH = struct.Struct("<I")


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends one message.

    Raises:
        PlantError: if it holds something that cannot be sent, is too large, or the connection is
            broken.
    """
    try:
        data = msgspec.msgpack.encode(message, enc_hook=_encode)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PlantError(f"a {message.get('kind')!r} message cannot be sent: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise PlantError(f"a message of {len(data)} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        connection.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise PlantError(f"the connection is broken: {error}") from error


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Waits for one message.

    Returns:
        The message, or None if the other side closed the connection between two messages.

    Raises:
        PlantError: if the connection breaks or times out, or the data is not a message.
    """
    head = _receive_exactly(connection, _LENGTH.size, may_end=True)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > MAX_MESSAGE_BYTES:
        raise PlantError(f"a message of {size} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    data = _receive_exactly(connection, size, may_end=False)
    try:
        message = msgspec.msgpack.decode(data or b"", ext_hook=_decode)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise PlantError(f"received what is not a message: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise PlantError(f"received a {type(message).__name__}, expected a map with a kind")
    return message


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if not hasattr(value, "__array__"):
        raise TypeError(f"{type(value).__name__} is neither a number, a container nor an array")
    array = np.asarray(value)
    if array.dtype.name not in DTYPES:
        raise TypeError(f"arrays of {array.dtype} cannot be sent")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    packed = [array.dtype.name, list(array.shape), array.tobytes()]
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(packed))


def _decode(code: int, data: memoryview) -> np.ndarray:
    if code != _ARRAY:
        raise ValueError(f"unknown extension type {code}")
    name, shape, content = msgspec.msgpack.decode(data, type=tuple[str, list[int], bytes])
    if name not in DTYPES or len(shape) > MAX_RANK or any(size < 0 for size in shape):
        raise ValueError(f"an array of {name[:40]}{shape[:20]} is not allowed")
    dtype = np.dtype(name)
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes for an array of {name}{shape}")
    array = np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape)
    return array.astype(dtype)  # a writable copy in native order


def _receive_exactly(connection: socket.socket, size: int, *, may_end: bool) -> bytes | None:
    buffer = bytearray(size)
    view = memoryview(buffer)
    received = 0
    while received < size:
        try:
            count = connection.recv_into(view[received:])
        except OSError as error:
            raise PlantError(f"the connection is broken: {error}") from error
        if count == 0:
            if may_end and received == 0:
                return None
            raise PlantError(f"the connection ended after {received} of {size} bytes")
        received += count
    return bytes(buffer)
