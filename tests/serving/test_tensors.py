import json
import struct

import numpy as np
import pytest

from serving import BundleError
from serving.manifest import Port
from serving.manifest_checks import DTYPES
from serving.tensors import (
    byte_count,
    check_tensors,
    decode_tensors,
    encode_tensors,
    port_shapes,
)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_arrays_of_every_port_dtype_come_back_bit_for_bit(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    again = decode_tensors(encode_tensors({"x": array}), "f")["x"]
    assert again.dtype == array.dtype and again.shape == shape
    assert again.tobytes() == array.tobytes()
    assert again.flags.writeable


def test_views_and_transposed_arrays_are_written_as_they_look():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    views = {"t": array.T, "s": array[::2, 1::2], "swapped": array.astype(">f4")}
    again = decode_tensors(encode_tensors({"t": views["t"], "s": views["s"]}), "f")
    assert np.array_equal(again["t"], array.T)
    assert np.array_equal(again["s"], [[1, 3], [9, 11]])


def test_no_tensors_at_all_is_a_valid_file():
    assert decode_tensors(encode_tensors({}), "f") == {}


def safetensors_file(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


GOOD = {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 10) + b"{}",
        safetensors_file(GOOD, b"\x00" * 3),
        safetensors_file(GOOD, b"\x00" * 5),
        safetensors_file({"x": {**GOOD["x"], "data_offsets": [4, 0]}}, b"\x00" * 4),
        safetensors_file({"x": {**GOOD["x"], "shape": [2**62, 2**62]}}, b"\x00" * 4),
        safetensors_file({"x": {**GOOD["x"], "shape": [2]}}, b"\x00" * 4),
        safetensors_file({"x": {**GOOD["x"], "dtype": "object"}}, b"\x00" * 4),
        b"\x80\x04\x95pickle",
    ],
)
def test_a_damaged_file_is_refused(data):
    with pytest.raises(BundleError, match=r"golden.safetensors: not a valid safetensors file"):
        decode_tensors(data, "golden.safetensors")


def test_an_element_type_without_a_port_type_is_refused():
    data = safetensors_file({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"ab")
    with pytest.raises(BundleError, match="tensor 'x' has the unsupported dtype BF16"):
        decode_tensors(data, "f")


EXPECTED = port_shapes([Port("a", [], [2], "float32"), Port("b", [], [], "int32")])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": np.zeros(2, np.float32)}, "tensor 'b' is missing"),
        ({"c": np.zeros(2)}, "unexpected tensor 'c'"),
        ({"a": np.zeros(2)}, "tensor 'a' has dtype float64, expected float32"),
        ({"a": np.zeros(2, ">f4")}, "tensor 'a' has dtype >f4, expected float32"),
        ({"a": np.zeros(3, np.float32)}, r"tensor 'a' has shape \(3,\), expected \(2,\)"),
        ({"b": np.zeros(1, np.int32)}, r"tensor 'b' has shape \(1,\), expected \(\)"),
    ],
)
def test_tensors_that_do_not_fit_the_ports_are_refused(tensors, message):
    whole = {"a": np.zeros(2, np.float32), "b": np.zeros((), np.int32)}
    given = tensors if "missing" in message else {**whole, **tensors}
    with pytest.raises(BundleError, match=message):
        check_tensors(given, EXPECTED, "file")
    assert check_tensors(whole, EXPECTED, "file") is None


def test_bytes_of_a_row_are_counted():
    assert byte_count([Port("a", [], [2, 3], "float64"), Port("b", [], [], "int16")]) == 50
