"""Scale, offset and limits that the step applies itself, and the record of who does."""

from __future__ import annotations

import json

import export_networks
import numpy as np
import onnx
import pytest

from export import MetadataError, export_policy, verify_parity
from serving import load_policy, self_test

SCALING = {
    "action_scale": {"arm_L": [2.0, 0.1], "arm_R": 30.0},
    "action_offset": {"arm_L": 0.3, "arm_R": [-1.0, 1e3]},
    "action_low": -20.0,
    "action_high": {"arm_L": [0.31, 0.32], "arm_R": [5.0, 1e4]},
}


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    network, observation = export_networks.make("two_arm")
    path = tmp_path_factory.mktemp("scaled") / "policy"
    bundle = export_policy(network, observation, path, metadata=SCALING, apply_action_scaling=True)
    return network, bundle


def test_every_runtime_gives_the_command_that_the_formula_gives(scaled, exported):
    network, bundle = scaled
    plain = exported("two_arm").bundle.golden
    for arm, low, high in (("arm_L", -20.0, [0.31, 0.32]), ("arm_R", -20.0, [5.0, 1e4])):
        action = plain[f"action.{arm}"]
        scale = np.asarray(SCALING["action_scale"][arm], np.float32)
        offset = np.asarray(SCALING["action_offset"][arm], np.float32)
        expected = np.clip(action * scale + offset, np.float32(low), np.asarray(high, np.float32))
        np.testing.assert_allclose(bundle.golden[f"action.{arm}"], expected, rtol=1e-6, atol=1e-6)
        clipped = np.isin(bundle.golden[f"action.{arm}"], np.asarray([low, *high], np.float32))
        assert clipped.any() and not clipped.all()
    report = verify_parity(bundle, network, steps=60, batch_sizes=(1, 3), write=False)
    assert report.passed, report.summary
    assert set(report.artefact_bytes) == {"stablehlo", "saved_model", "saved_model_xla", "onnx"}
    assert self_test(load_policy(bundle)).passed


def test_manifest_and_file_say_that_it_is_done(scaled):
    manifest = scaled[1].manifest
    assert manifest.metadata.action_applied_by == "policy"
    assert manifest.applied_to_action == [
        *["action_scale", "action_offset", "action_low", "action_high"]
    ]
    assert manifest.metadata.action_scale == {"action.arm_L": [2.0, 0.1], "action.arm_R": 30.0}
    model = onnx.load(scaled[1].artefact_path("onnx"))
    props = {entry.key: entry.value for entry in model.metadata_props}
    assert "action_scale" not in props and "action_offset" not in props
    assert json.loads(props["nnx_ppo.applied_to_action"]) == manifest.applied_to_action
    assert json.loads(props["nnx_ppo.metadata"])["action_applied_by"] == "policy"


def test_without_it_the_robot_is_told_to_apply(tmp_path):
    network, observation = export_networks.make("mlp")
    bundle = export_policy(
        network,
        observation,
        tmp_path / "policy",
        formats=["onnx"],
        metadata={"action_scale": 2.0},
    )
    assert bundle.manifest.metadata.action_applied_by == "robot"
    assert bundle.manifest.applied_to_action == []
    assert np.abs(bundle.golden["action"]).max() <= 1.0


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "has none of .*leave apply_action_scaling out"),
        ({"action_scale": 2.0, "action_applied_by": "robot"}, "would be applied twice"),
    ],
)
def test_a_request_that_contradicts_the_metadata_is_refused(tmp_path, metadata, message):
    network, observation = export_networks.make("mlp")
    with pytest.raises(MetadataError, match=message):
        export_policy(
            network,
            observation,
            tmp_path / "policy",
            formats=["onnx"],
            metadata=metadata,
            apply_action_scaling=True,
        )
    assert list(tmp_path.iterdir()) == []
