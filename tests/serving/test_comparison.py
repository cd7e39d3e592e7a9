"""Two bundles are compared in everything that would make a robot act otherwise."""

import msgspec
import numpy as np
import onnx
import pytest

from serving import load_policy, read_bundle
from serving.comparison import (
    SECTIONS,
    compare_actions,
    compare_bundles,
    same_interface,
    same_observations,
)
from serving.manifest import metadata_from


@pytest.fixture(scope="module")
def first(bundle_path):
    return read_bundle(bundle_path)


def differences(one, other):
    found = compare_bundles(one, other)
    assert [d.section for d in found] == sorted((d.section for d in found), key=SECTIONS.index)
    return {(d.section, d.what): (d.first, d.second) for d in found}


def weights_doubled(leaky) -> bytes:
    model = leaky.onnx_model()
    for tensor in model.graph.initializer:
        if tensor.name == "weights":
            values = 2.0 * onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, "weights"))
    return model.SerializeToString()


def test_a_bundle_is_the_same_as_itself_and_as_its_copy(first, leaky, tmp_path):
    assert compare_bundles(first, first) == []
    copy = read_bundle(leaky.write(tmp_path / "copy"))
    assert compare_bundles(first, copy) == []


def test_metadata_rate_and_names_are_compared_by_field(first, leaky, tmp_path):
    manifest = msgspec.structs.replace(
        leaky.manifest(),
        name="other",
        control_rate_hz=100.0,
        metadata=metadata_from({"joint_names": ["a", "b", "d"], "gripper": 1}),
        versions={"jax": "0.11.0"},
    )
    other = read_bundle(leaky.write(tmp_path / "other", manifest=manifest))
    assert differences(first, other) == {
        ("interface", "control rate"): ("50.0", "100.0"),
        ("metadata", "joint_names"): ('["a", "b", "c"]', '["a", "b", "d"]'),
        ("metadata", "extra.robot"): ("arm 7", "absent"),
        ("metadata", "extra.gripper"): ("absent", "1"),
        ("origin", "name"): ("leaky", "other"),
        ("origin", "jax version"): ("0.10.2", "0.11.0"),
    }
    assert same_interface(first, other)


def test_a_changed_port_is_a_difference_of_the_interface(first, leaky, tmp_path):
    ports = [
        msgspec.structs.replace(port, reset="keep") if port.name == "carry.hidden" else port
        for port in leaky.manifest().carry_ports
    ]
    manifest = msgspec.structs.replace(leaky.manifest(), carry_ports=ports)
    other = read_bundle(leaky.write(tmp_path / "other", manifest=manifest))
    assert differences(first, other) == {("interface", "carry.hidden: reset"): ("initial", "keep")}
    assert not same_interface(first, other)


def test_recorded_actions_tell_policies_apart_that_saw_the_same(first, leaky, tmp_path):
    golden = {name: values.copy() for name, values in first.golden.items()}
    golden["action.joints"][7, 1, 2] += 0.25
    other = read_bundle(leaky.write(tmp_path / "other", golden=golden))
    assert same_observations(first, other)
    ((what, values),) = differences(first, other).items()
    assert what == ("behaviour", "action.joints: up to 2.5e-01 apart at [7, 1, 2]")
    assert float(values[1]) - float(values[0]) == pytest.approx(0.25)


def test_a_nan_on_one_side_is_a_difference_without_bound(first, leaky, tmp_path):
    golden = {name: values.copy() for name, values in first.golden.items()}
    golden["action.joints"][3, 0, 0] = np.nan
    other = read_bundle(leaky.write(tmp_path / "other", golden=golden))
    ((what, values),) = differences(first, other).items()
    assert what == ("behaviour", "action.joints: up to infinite apart at [3, 0, 0]")
    assert values[1] == "nan"


def test_other_observations_are_said_to_differ(first, leaky, tmp_path):
    other = read_bundle(leaky.write(tmp_path / "other", golden=leaky.golden(steps=30)))
    found = differences(first, other)
    (said,) = found.values()
    assert list(found) == [("behaviour", "recorded observations")]
    assert said[0].startswith("40 steps of 3 rows, obs.arm.contact mean 0.")
    assert said[1].startswith("30 steps of 3 rows")


def test_other_weights_show_in_the_files_and_when_both_act(first, leaky, tmp_path):
    other = read_bundle(leaky.write(tmp_path / "other", model=weights_doubled(leaky)))
    assert list(differences(first, other)) == [("artefacts", "onnx/policy.onnx")]
    policies = [load_policy(bundle, runtime="onnx") for bundle in (first, other)]
    found = {d.what.split(":")[0]: d for d in compare_actions(*policies)}
    assert set(found) == {"action.joints", "next_carry.hidden", "value"}
    assert found["action.joints"].what.endswith("on the first's observations in onnx")
    assert compare_actions(policies[0], policies[0]) == []


def test_the_initial_carry_is_compared_by_its_values(first, leaky, tmp_path, monkeypatch):
    import dataclasses

    carry = {**first.initial_carry, "carry.total": np.array([2.0], np.float32)}
    other = dataclasses.replace(first, initial_carry=carry)
    assert differences(first, other) == {
        ("initial carry", "carry.total: up to 5.0e-01 apart at [0]"): ("1.5", "2")
    }
