import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from serving.runtimes.onnx_weights import has_external_weights


def tensor(external: bool) -> onnx.TensorProto:
    value = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    if external:
        value.ClearField("raw_data")
        value.data_location = onnx.TensorProto.EXTERNAL
        value.external_data.add(key="location", value="w.bin")
    return value


def graph(*nodes, **change) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "g", [], [], **change)


def model(built: onnx.GraphProto, **change) -> onnx.ModelProto:
    return helper.make_model(built, **change)


def in_initializer(value):
    return model(graph(initializer=[value]))


def in_constant(value):
    return model(graph(helper.make_node("Constant", [], ["w"], value=value)))


def in_tensor_list(value):
    return model(graph(helper.make_node("Op", [], ["w"], values=[value])))


def in_branch(value):
    branch = graph(initializer=[value])
    return model(graph(helper.make_node("If", ["c"], ["w"], then_branch=branch)))


def in_branch_list(value):
    return model(graph(helper.make_node("Op", [], ["w"], bodies=[graph(initializer=[value])])))


def in_function(value):
    node = helper.make_node("Constant", [], ["w"], value=value)
    function = helper.make_function("d", "f", [], ["w"], [node], [helper.make_opsetid("", 18)])
    return model(graph(), functions=[function])


def in_sparse_initializer(value):
    built = graph()
    built.sparse_initializer.add().values.CopyFrom(value)
    return model(built)


def in_training_graph(value):
    built = model(graph())
    built.training_info.add().algorithm.initializer.add().CopyFrom(value)
    return built


PLACES = [
    *[in_initializer, in_constant, in_tensor_list, in_branch, in_branch_list],
    *[in_function, in_sparse_initializer, in_training_graph],
]


@pytest.mark.parametrize("place", PLACES)
def test_external_weights_are_found_wherever_a_model_can_hold_a_tensor(place):
    assert has_external_weights(place(tensor(external=True)).SerializeToString())
    assert not has_external_weights(place(tensor(external=False)).SerializeToString())


@pytest.mark.parametrize("half", ["location alone", "entry alone"])
def test_half_a_reference_counts_as_one(half):
    value = tensor(external=True)
    value.ClearField("external_data" if half == "location alone" else "data_location")
    assert has_external_weights(in_initializer(value).SerializeToString())


def test_metadata_that_speaks_of_a_location_is_no_reference():
    built = in_initializer(tensor(external=False))
    built.metadata_props.add(key="location", value="w.bin")
    assert not has_external_weights(built.SerializeToString())


def test_what_is_no_protocol_buffer_is_refused():
    data = in_initializer(tensor(external=False)).SerializeToString()
    for broken in (
        data[:-1],
        b"\xff" * 20,
        b"\x0b",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ):
        with pytest.raises(ValueError, match="not a protocol buffer"):
            has_external_weights(broken)


def test_endless_nesting_is_refused():
    def within(number: int, data: bytes) -> bytes:
        size = len(data)
        return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7]) + data

    data = b""
    for _ in range(40):
        data = within(1, within(5, within(6, data)))  # a graph in an attribute of a node
    with pytest.raises(ValueError, match="more than 64 nested messages"):
        has_external_weights(within(7, data))


def test_random_bytes_are_refused_or_hold_nothing():
    rng = np.random.default_rng(0)
    for _ in range(500):
        data = rng.bytes(int(rng.integers(1, 60)))
        try:
            assert has_external_weights(data) in (True, False)
        except ValueError as error:
            assert "protocol buffer" in str(error)
