"""What a bundle says about its network is checked like everything else that is read."""

import json

import msgspec
import pytest

from serving import BundleError, BundleWriter, read_bundle
from serving.structure import (
    Connection,
    FlowEdge,
    FlowNode,
    Graph,
    Module,
    Population,
    Structure,
    encode_structure,
    parse_structure,
)


def module(path: str, depth: int) -> Module:
    return Module(
        path=path, name=path or "network", depth=depth, type="Dense", class_path="m:Dense"
    )


STRUCTURE = Structure(
    modules=[module("", 0), module("a", 1), module("a.b", 2), module("c", 1)],
    graphs=[
        Graph(
            path="a",
            populations=[Population(name="p", size=3), Population(name="q", size=2)],
            connections=[
                Connection(source="p", target="q", delay_steps=2, transform="Dense", parameters=8)
            ],
        )
    ],
    flow_nodes=[FlowNode(role="observation", label="obs", path="obs")],
    flow_edges=[FlowEdge(source=0, target=0, elements=1)],
    operations={"onnx": {"Gemm": 1}},
)


def changed(edit) -> bytes:
    values = msgspec.to_builtins(STRUCTURE)
    edit(values)
    return json.dumps(values).encode()


def test_a_structure_is_the_same_after_writing_and_reading():
    assert parse_structure(encode_structure(STRUCTURE)) == STRUCTURE


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda v: v.update(structure_version=2), "structure version 2, expected 1"),
        (lambda v: v.update(modules=[]), "no modules"),
        (lambda v: v["modules"][1].update(depth=2), "depth 2 has no parent"),
        (lambda v: v["modules"][0].update(depth=1), "depth 1 has no parent"),
        (lambda v: v["modules"][3].update(depth=0), "depth 0 has no parent"),
        (lambda v: v["graphs"][0]["populations"][0].update(name="q"), "two populations of one"),
        (lambda v: v["graphs"][0]["connections"][0].update(target="x"), "is not one of graph"),
        (lambda v: v["graphs"][0]["connections"][0].update(delay_steps=-1), "is not one of graph"),
        (lambda v: v["flow_edges"][0].update(target=1), "from box 0 to box 1 of 1"),
        (lambda v: v.update(surprise=1), "surprise"),
        (lambda v: v["flow_nodes"][0].update(role="critic"), "role"),
    ],
)
def test_a_structure_that_contradicts_itself_is_refused(edit, message):
    with pytest.raises(BundleError, match=message) as caught:
        parse_structure(changed(edit))
    assert str(caught.value).startswith("structure.json: ")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"modules":' + b"[" * 100_000])
def test_what_is_no_structure_is_refused(data):
    with pytest.raises(BundleError, match="does not describe a network"):
        parse_structure(data)


def test_a_bundle_lists_hashes_and_reads_its_structure(leaky, tmp_path):
    with BundleWriter(tmp_path / "policy") as writer:
        (writer.path / "onnx").mkdir()
        (writer.path / "onnx" / "policy.onnx").write_bytes(b"model")
        carry = {k: v[0] for k, v in leaky.initial_carry(1).items()}
        bundle = writer.commit(
            leaky.manifest(),
            carry,
            leaky.golden(),
            STRUCTURE,
            lambda being_written: (being_written.path / "report.html").write_text("a page"),
        )
    assert bundle.structure == STRUCTURE and bundle.path == tmp_path / "policy"
    assert (tmp_path / "policy" / "report.html").read_text() == "a page"
    assert read_bundle(tmp_path / "policy").structure == STRUCTURE
    file = tmp_path / "policy" / "structure.json"
    file.write_bytes(file.read_bytes().replace(b"Dense", b"Tense"))
    with pytest.raises(BundleError, match=r"structure\.json: altered"):
        read_bundle(tmp_path / "policy")


def test_a_bundle_without_a_structure_is_read(bundle_path):
    assert read_bundle(bundle_path).structure is None
