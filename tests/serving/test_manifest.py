import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from serving import BundleError
from serving.manifest import File, Manifest, Metadata, metadata_from
from serving.manifest_checks import MAX_FILE_BYTES, MAX_TENSOR_FILE_BYTES, check_path
from serving.manifest_json import MAX_MANIFEST_BYTES, encode_manifest, parse_manifest

DIGEST = "0" * 64


@pytest.fixture
def manifest(leaky) -> Manifest:
    artefact = leaky.manifest().artefacts["onnx"]
    listed = msgspec.structs.replace(artefact, files=[File("onnx/policy.onnx", DIGEST, 3)])
    return msgspec.structs.replace(
        leaky.manifest(),
        files=[
            File("initial_carry.safetensors", DIGEST, 1),
            File("golden.safetensors", DIGEST, 2),
        ],
        artefacts={"onnx": listed},
    )


def test_a_manifest_read_back_is_the_one_written(manifest):
    assert parse_manifest(encode_manifest(manifest)) == manifest


def test_numbers_keep_every_digit(manifest):
    exact = 0.1 + 0.2
    metadata = metadata_from({"default_joint_positions": [exact, 1e-320], "gain": 1 / 3})
    again = parse_manifest(
        encode_manifest(msgspec.structs.replace(manifest, metadata=metadata))
    ).metadata
    assert again.default_joint_positions == [exact, 1e-320]
    assert again.extra["gain"] == 1 / 3


def test_every_field_is_written_out(manifest):
    written = json.loads(encode_manifest(manifest))
    assert set(written) == set(Manifest.__struct_fields__)
    assert written["metadata"]["safe_action"] is None


def test_a_newer_version_is_named_even_if_all_other_fields_are_new():
    data = json.dumps({"format_version": 2, "tensors": [1, 2], "name": 7}).encode()
    with pytest.raises(BundleError, match=r"manifest.json: format version 2 is newer than 1"):
        parse_manifest(data)


@pytest.mark.parametrize("version", ["1", 1.0, True, None, [1]])
def test_a_version_that_is_no_integer_is_refused(version):
    with pytest.raises(BundleError, match="no integer format_version"):
        parse_manifest(json.dumps({"format_version": version}).encode())


@pytest.mark.parametrize("version", [0, -1])
def test_an_unknown_old_version_is_refused(version):
    with pytest.raises(BundleError, match="is unknown; expected 1"):
        parse_manifest(json.dumps({"format_version": version}).encode())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"format_version": 1', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"format_version": 1, "format_version": 2}', "repeated key 'format_version'"),
        (b'{"format_version": 1, "a": {"b": 1, "b": 2}}', "repeated key 'b'"),
        (b'{"format_version": NaN}', "NaN is not a JSON number"),
        (b'{"format_version": 1, "x": 1e400}', "1e400 is too large a number"),
        (b'{"format_version": 1, "name": "\\ud800"}', "surrogates not allowed"),
        (b'{"format_version": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"format_version": 1' + b"0" * 5000 + b"}", "not valid JSON"),
        (b'{"format_version": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
    ],
)
def test_what_is_not_json_is_refused(data, message):
    with pytest.raises(BundleError, match=message):
        parse_manifest(data)


def test_a_huge_manifest_is_refused_before_it_is_parsed():
    with pytest.raises(BundleError, match="larger than the limit of 8388608 bytes"):
        parse_manifest(b" " * (MAX_MANIFEST_BYTES + 1))


def changed(manifest: Manifest, change: Callable[[dict[str, Any]], object]) -> bytes:
    values = json.loads(encode_manifest(manifest))
    change(values)
    return json.dumps(values).encode()


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda m: m.update(colour="red"), "colour"),
    (lambda m: m.pop("carry_ports"), "carry_ports"),
    (lambda m: m["metadata"].update(colour="red"), "colour"),
    (lambda m: m["observation_ports"][0].update(rank=1), "rank"),
    (lambda m: m.update(batch_size="3"), "batch_size"),
    (lambda m: m.update(batch_size=True), "batch_size"),
    (lambda m: m["action"].update(node="pickle"), "pickle"),
    (lambda m: m.update(name=""), "name must have 1 to 512"),
    (lambda m: m.update(name="a\nb"), "printable"),
    (lambda m: m.update(batch_size=0), "batch_size is 0"),
    (lambda m: m.update(control_rate_hz=0), "control_rate_hz is 0"),
    (lambda m: m.update(action_ports=[]), "action_ports is empty"),
    (lambda m: m.update(applied_to_action=["gain"]), "applied_to_action has 'gain'"),
    (
        lambda m: m.update(reset_port={"name": "reset", "path": [], "shape": [2], "dtype": "bool"}),
        r"reset_port is bool\[2\], expected bool\[\]",
    ),
    (lambda m: m["carry_ports"][0].update(name="obs.goal"), "'obs.goal' is used 2 times"),
    (lambda m: m["carry_ports"][0].update(next_name="value"), "'value' is used 2 times"),
    (lambda m: m["carry_ports"][0].update(name=""), "port name '' is not allowed"),
    (lambda m: m["carry_ports"][0].update(name="a\x00b"), "is not allowed"),
    (lambda m: m["carry_ports"][0].update(name="__metadata__"), "is not allowed"),
    (lambda m: m["carry_ports"][0].update(name="n" * 513), "is not allowed"),
    (lambda m: m["carry_ports"][0].update(reset="never"), "Invalid enum value 'never'"),
    (lambda m: m["carry_ports"][0].update(dtype="object"), "dtype 'object', expected one of"),
    (lambda m: m["carry_ports"][0].update(dtype="bfloat16"), "dtype 'bfloat16'"),
    (lambda m: m["carry_ports"][0].update(shape=[-1]), r"shape \[-1\] is not allowed"),
    (lambda m: m["carry_ports"][0].update(shape=[1] * 17), "is not allowed"),
    (lambda m: m["carry_ports"][0].update(shape=[2**20, 2**20]), "more than 2147483647 elements"),
    (lambda m: m["carry_ports"][0].update(shape=[1.5]), "fields of format 1"),
    (lambda m: m["carry_ports"][0].update(shape=[10**30]), "more than 2147483647 elements"),
    (lambda m: m.update(extra_output_ports=m["extra_output_ports"] * 5000), "at most 4096"),
    (lambda m: m["observation"]["keys"].reverse(), "observation: keys must be sorted"),
    (lambda m: m["observation"]["children"].pop(), "observation: 3 names for 2 children"),
    (
        lambda m: m["observation"]["children"][1].update(port="obs.hand"),
        "observation.goal: port 'obs.hand' is not in observation_ports",
    ),
    (
        lambda m: m["observation"]["children"][1].update(port="obs.arm.position"),
        "observation.goal: port 'obs.arm.position' has two leaves",
    ),
    (
        lambda m: m["observation"]["children"][1].update(shape=[4]),
        r"observation.goal: float32\[4\] differs from port obs.goal, float32\[\]",
    ),
    (
        lambda m: m["observation"]["children"][1].update(port=None),
        r"no leaf for the ports \['obs.goal'\]",
    ),
    (
        lambda m: m["action"]["children"][0].update(port=None),
        "action.gripper: every leaf of the action needs a port",
    ),
    (lambda m: m["network_carry"]["leaves"].pop(), "network_carry: 3 leaves for a tree of 4"),
    (
        lambda m: m["network_carry"]["leaves"][2].update(source="exported"),
        "network_carry.key: source 'exported' does not go with port None",
    ),
    (
        lambda m: m["network_carry"]["leaves"][0].update(source="dropped"),
        "network_carry.count: source 'dropped' does not go with port 'carry.count'",
    ),
    (lambda m: m["network_carry"]["leaves"][0].update(shape=[9]), "the tree says"),
    (
        lambda m: m["network_carry"]["leaves"][0].update(slots=[0]),
        r"network_carry.count: slots \[0\] do not go with state carry.count",
    ),
    (
        lambda m: m["carry_ports"][0].update(kind="packed_delays"),
        "network_carry.count: slots None do not go with packed_delays carry.count",
    ),
    (lambda m: m["files"].pop(), "files must list exactly"),
    (lambda m: m["files"][0].update(path="carry.safetensors"), "files must list exactly"),
    (lambda m: m["files"][0].update(size=MAX_TENSOR_FILE_BYTES + 1), "larger than the limit"),
    (lambda m: m["files"][0].update(size=-1), "size -1 is outside"),
    (lambda m: m["files"][0].update(sha256="0" * 63), "is not a SHA-256"),
    (lambda m: m["files"][0].update(sha256="G" * 64), "is not a SHA-256"),
    (lambda m: m["files"][0].update(sha256="0" * 64 + "\n"), "is not a SHA-256"),
    (lambda m: m.update(artefacts={}), "artefacts is empty"),
    (lambda m: m["artefacts"].update(tflite=m["artefacts"]["onnx"]), "artefact 'tflite'"),
    (lambda m: m["artefacts"]["onnx"].update(format="stablehlo"), "artefact 'onnx' with format"),
    (lambda m: m["artefacts"]["onnx"].update(flavour="xla"), "artefact 'onnx' with format"),
    (lambda m: m["artefacts"]["onnx"].update(files=[]), "lists no files"),
    (lambda m: m["artefacts"]["onnx"].update(entry="onnx/other.onnx"), "its entry"),
    (lambda m: m["artefacts"]["onnx"].update(entry="../policy.onnx"), "'..' component"),
    (lambda m: m["artefacts"]["onnx"].update(entry="policy.onnx"), "is not below 'policy.onnx'"),
    (
        lambda m: m["artefacts"]["onnx"]["files"][0].update(path="/onnx/policy.onnx"),
        "is not below 'onnx'",
    ),
    (
        lambda m: m["artefacts"]["onnx"]["files"][0].update(path="onnx/../../policy.onnx"),
        "its entry",
    ),
    (
        lambda m: m["artefacts"]["onnx"]["files"].append(
            {"path": "onnx/../../x", "sha256": DIGEST, "size": 1}
        ),
        r"path 'onnx/../../x' has an empty, '.' or '..' component",
    ),
    (
        lambda m: m["artefacts"]["onnx"]["files"].append(
            {"path": "onnx/Policy.ONNX", "sha256": DIGEST, "size": 1}
        ),
        "listed more than once",
    ),
    (
        lambda m: m["artefacts"]["onnx"]["files"][0].update(size=MAX_FILE_BYTES + 1),
        "is outside 0..",
    ),
    (
        lambda m: m["artefacts"]["onnx"].update(
            files=[{"path": f"onnx/{i}", "sha256": DIGEST, "size": 1} for i in range(4100)],
            entry="onnx/7",
        ),
        "at most 4096",
    ),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_manifest_that_breaks_a_rule_is_refused(manifest, change, message):
    with pytest.raises(BundleError, match=message):
        parse_manifest(changed(manifest, change))


def pack_hidden(manifest: dict[str, Any], slots: list[int], port_shape: list[int]) -> None:
    """Make the leaf `hidden` a buffer of 2 slots of 3 in packed delays."""
    port, leaf = manifest["carry_ports"][1], manifest["network_carry"]["leaves"][1]
    node = manifest["network_carry"]["tree"]["children"][1]
    port.update(kind="packed_delays", shape=port_shape)
    leaf.update(source="delay_buffer", slots=slots, shape=[2, 3])
    node.update(shape=[2, 3])


def test_packed_delays_are_accepted(manifest):
    changed_bytes = changed(manifest, lambda m: pack_hidden(m, [0, 5], [8]))
    leaf = parse_manifest(changed_bytes).network_carry.leaves[1]
    assert (leaf.source, leaf.slots, leaf.shape) == ("delay_buffer", [0, 5], [2, 3])


@pytest.mark.parametrize(
    ("slots", "port_shape"),
    [([0, 6], [8]), ([0], [8]), ([-1, 5], [8]), ([0, 5], [2, 4])],
)
def test_packed_delays_that_do_not_fit_are_refused(manifest, slots, port_shape):
    with pytest.raises(BundleError, match="network_carry.hidden: .* does not fit in port"):
        parse_manifest(changed(manifest, lambda m: pack_hidden(m, slots, port_shape)))


def test_a_batch_of_rules_is_not_broken_by_a_harmless_change(manifest):
    data = changed(manifest, lambda m: m.update(batch_size=4, git_commit="abc", control_rate_hz=7))
    assert parse_manifest(data).control_rate_hz == 7.0


@pytest.mark.parametrize(
    "path",
    ["", "/a", "//a", "a//b", "a/", ".", "..", "./a", "a/../b", "a/..", "C:/a", "a\\b", "a\nb"]
    + ["a\x00", "a" * 1025],
)
def test_a_path_that_could_lead_elsewhere_is_refused(path):
    with pytest.raises(ValueError, match="path"):
        check_path(path)


@pytest.mark.parametrize(
    "path", ["a", "onnx/policy.onnx", "saved_model/variables/v.data-0-of-1", "..a"]
)
def test_a_plain_relative_path_is_accepted(path):
    assert check_path(path) is None


def test_metadata_sorts_known_fields_from_extra_ones_and_makes_arrays_plain():
    metadata = metadata_from(
        {
            "action_scale": np.array([0.5, 0.25], np.float32),
            "safe_action": {"arm": np.zeros(2), "hand": np.float64(1.0)},
            "extra": {"run": 3},
            "gains": {"kp": np.arange(2)},
        }
    )
    assert metadata.action_scale == [0.5, 0.25]
    assert metadata.safe_action == {"arm": [0.0, 0.0], "hand": 1.0}
    assert metadata.extra == {"run": 3, "gains": {"kp": [0, 1]}}
    assert metadata_from(None).extra == {}


WITHIN_ITSELF: dict[str, object] = {}
WITHIN_ITSELF["again"] = WITHIN_ITSELF


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"joint_names": "hip"}, "joint_names"),
        ({"quaternion_order": "zyxw"}, "zyxw"),
        ({"extra": 3}, "extra: expected a mapping"),
        ({"model": object()}, "model: object cannot be stored"),
        ({"a": {"b": [1, {2}]}}, "a.b.1: set cannot be stored"),
        (WITHIN_ITSELF, "nested too deeply, or within itself"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused(values, message):
    with pytest.raises(BundleError, match=message):
        metadata_from(values)


def test_a_number_that_json_does_not_have_is_refused_when_written(manifest):
    metadata = Metadata(extra={"gains": [1.0, float("nan")]})
    with pytest.raises(BundleError, match=r"manifest.metadata.extra.gains.1 is nan"):
        encode_manifest(msgspec.structs.replace(manifest, metadata=metadata))
