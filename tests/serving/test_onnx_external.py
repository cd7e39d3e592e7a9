"""Weights beside an ONNX model are read from a checked file, and from nowhere else."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from serving.runtimes.onnx_external import read_external

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
CONTENT = b"\0" * 64 + VALUES.tobytes()


def tensor(name="w", dtype=onnx.TensorProto.FLOAT, dims=(2, 3), **place) -> onnx.TensorProto:
    made = onnx.TensorProto(name=name, data_type=dtype, dims=dims)
    made.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "w.data", "offset": "64", "length": "24", **place}.items():
        made.external_data.add(key=key, value=value)
    return made


def model(*tensors: onnx.TensorProto) -> bytes:
    graph = helper.make_graph([], "g", [], [], initializer=list(tensors))
    return helper.make_model(graph).SerializeToString()


def read(*tensors: onnx.TensorProto) -> dict[str, np.ndarray]:
    return read_external(model(*tensors), {"w.data": CONTENT}.__getitem__)


def test_tensors_are_read_with_their_shape_and_bits():
    found = read(tensor(), numpy_helper.from_array(VALUES, "inline"), tensor("half", dims=(1, 6)))
    assert list(found) == ["w", "half"]
    np.testing.assert_array_equal(found["w"], VALUES)
    assert found["half"].shape == (1, 6) and found["w"].dtype == np.float32


def test_every_element_type_is_read():
    for kind in ("float16", "float64", "int8", "uint8", "int32", "int64", "uint16", "bool"):
        array = np.asarray([[1, 0, 1]], kind)
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        made = tensor("t", element, (1, 3), offset="0", length=str(array.nbytes))
        found = read_external(model(made), {"w.data": array.tobytes()}.__getitem__)["t"]
        assert found.dtype == array.dtype and np.array_equal(found, array)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (tensor(offset="65"), "'w' ends at byte 89 of 88 in 'w.data'"),
        (tensor(offset="-1"), "ends at byte"),
        (tensor(length="20"), "'w' takes 24 bytes, the model says 20"),
        (tensor(dims=(2, 2)), "'w' takes 16 bytes, the model says 24"),
        (tensor(dtype=16), "says neither its type nor its file"),
        (tensor(offset="x"), "invalid literal"),
        (tensor(dims=(2**40, 2**40)), "takes"),
    ],
)
def test_a_tensor_that_does_not_fit_its_file_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        read(made)


def test_weights_of_a_branch_in_another_file_are_refused():
    branch = helper.make_graph([], "b", [], [], initializer=[tensor()])
    node = helper.make_node("If", ["c"], ["w"], then_branch=branch)
    data = helper.make_model(helper.make_graph([node], "g", [], [])).SerializeToString()
    with pytest.raises(ValueError, match="of a loop, branch or function"):
        read_external(data, {"w.data": CONTENT}.__getitem__)
