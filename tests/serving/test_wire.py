import socket
import struct
import threading

import msgspec
import numpy as np
import pytest

from serving import PlantError, wire
from serving.manifest_checks import DTYPES


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.settimeout(20.0)
    theirs.settimeout(20.0)
    yield ours, theirs
    ours.close()
    theirs.close()


def exchange(pair, value):
    wire.send(pair[0], {"kind": "x", "value": value})
    message = wire.receive(pair[1])
    assert message is not None
    return message["value"]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
def test_arrays_arrive_bit_for_bit(pair, dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    again = exchange(pair, array)
    assert again.dtype == array.dtype and again.shape == shape
    assert again.tobytes() == array.tobytes() and again.flags.writeable


def test_trees_arrive_with_plain_containers(pair):
    import dataclasses

    import jax.numpy as jnp

    @dataclasses.dataclass
    class Reading:
        imu: object

    value = {
        "a": [1, 2.5, None, True, "x"],
        "b": (np.float32(0.5), np.int64(7), np.float64(0.25)),
        "c": Reading(np.ones(2, np.float32)),
        3: jnp.zeros(2),
        "t": np.arange(6.0).reshape(2, 3).T,
    }
    again = exchange(pair, value)
    assert again["a"] == [1, 2.5, None, True, "x"]
    assert again["b"] == [0.5, 7, 0.25]
    assert again["c"]["imu"].tolist() == [1.0, 1.0]
    assert again[3].tolist() == [0.0, 0.0]
    assert np.array_equal(again["t"], value["t"])


@pytest.mark.parametrize("value", [object(), 1j, np.array([None]), np.array(["text"])])
def test_what_cannot_be_sent_is_refused(pair, value):
    with pytest.raises(PlantError, match="a 'x' message cannot be sent"):
        wire.send(pair[0], {"kind": "x", "value": value})


def test_a_message_above_the_limit_is_refused_by_both_sides(pair, monkeypatch):
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(PlantError, match="at most 1000 are allowed"):
        wire.send(pair[0], {"kind": "x", "value": np.zeros(1000)})
    pair[0].sendall(struct.pack("<I", 1001))
    with pytest.raises(PlantError, match="a message of 1001 bytes, at most 1000"):
        wire.receive(pair[1])


def test_an_end_between_messages_is_none_and_within_one_an_error(pair):
    pair[0].sendall(struct.pack("<I", 10) + b"abc")
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(PlantError, match="the connection ended after 3 of 10 bytes"):
        wire.receive(pair[1])
    assert wire.receive(pair[1]) is None


def test_a_large_array_is_put_together_from_many_pieces(pair):
    array = np.random.default_rng(0).normal(size=300_000)
    sender = threading.Thread(target=wire.send, args=(pair[0], {"kind": "x", "value": array}))
    sender.start()
    message = wire.receive(pair[1])
    sender.join()
    assert message is not None and np.array_equal(message["value"], array)


def extension(code: int, *fields: object) -> bytes:
    data = msgspec.msgpack.encode(list(fields))
    return msgspec.msgpack.encode({"kind": "x", "v": msgspec.msgpack.Ext(code, data)})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\x01",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"no kind": 1}),
        msgspec.msgpack.encode({"kind": 3}),
        b"\x91" * 100_000,
        extension(2, "float32", [1], b"abcd"),
        extension(1, "object", [1], b"abcdefgh"),
        extension(1, "float32", [2], b"abcd"),
        extension(1, "float32", [-1], b"abcd"),
        extension(1, "float32", [1] * 17, b"abcd"),
        extension(1, "float32", [2**40, 2**40], b"abcd"),
        extension(1, "float32", "wide", b"abcd"),
        extension(1, "float32"),
        extension(1, "float32", [1], "text"),
    ],
)
def test_what_is_not_a_message_is_refused(pair, data):
    pair[0].sendall(struct.pack("<I", len(data)) + data)
    with pytest.raises(PlantError, match="received"):
        wire.receive(pair[1])


def test_five_hundred_random_messages_are_refused_or_read(pair):
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(500):
        data = rng.bytes(int(rng.integers(1, 200)))
        pair[0].sendall(struct.pack("<I", len(data)) + data)
        try:
            wire.receive(pair[1])
        except PlantError:
            refused += 1
    assert refused >= 490
