"""The ONNX file is useful alone: ONNX Runtime and its `metadata_props` are enough to act."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import export_networks
import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

from export import ExportError, export_policy
from export.formats.onnx_metadata import onnx_metadata
from serving import BundleError
from serving.action_values import action_values, check_action_values
from serving.manifest import Metadata, Port, metadata_from

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"
NUMBERS = [0.1 + 0.2, float(np.float32(0.1)), 1e-320, -1.7976931348623157e308]


def runner() -> Any:
    """Return the class that docs/onnx.md shows, which knows nothing of this project."""
    source = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[1]
    source = source[: source.index("\n\n\npolicy = ")]
    assert "export" not in source and "serving" not in source
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace["LoneStep"]


def properties(file: Path) -> dict[str, str]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return dict(session.get_modelmeta().custom_metadata_map)


@pytest.mark.parametrize("name", ["plain_lstm_trainable", "population_graph", "two_arm"])
def test_the_file_and_onnxruntime_alone_run_the_loop(exported, tmp_path, name):
    """The golden trajectory, resets and all, from nothing but a copy of the file."""
    bundle = exported(name).bundle
    file = tmp_path / "step.onnx"
    file.write_bytes(bundle.artefact_path("onnx").read_bytes())
    golden = bundle.golden
    steps, rows = golden["reset"].shape
    assert golden["reset"].any()
    policy = runner()(file, rows)
    observed = [value.name for value in policy.session.get_inputs()][len(policy.ports) :]
    for t in range(steps):
        policy.reset(golden["reset"][t])
        action = policy.step({port: golden[port][t] for port in observed})
        for port, values in action.items():
            np.testing.assert_allclose(values, golden[port][t], atol=1e-5, rtol=1e-5)
    assert policy.rate_hz is None


@pytest.fixture(scope="module")
def walker(tmp_path_factory):
    network, observation = export_networks.make("mlp")
    return export_policy(
        network,
        observation,
        tmp_path_factory.mktemp("walker") / "policy",
        formats=["onnx"],
        control_rate_hz=50.0,
        metadata={
            "joint_names": ["hip", "knee"],
            "default_joint_pos": NUMBERS[:2],
            "joint_stiffness": np.asarray([20.0, 0.1], np.float32),
            "joint_damping": NUMBERS[2:],
            "action_scale": 0.1,
            "safe_action": [0.0, 0.5],
            "command_names": ["velocity"],
            "observation_names": ["joint_pos", "joint_vel"],
            "quaternion_order": "wxyz",
            "robot": "walker",
        },
    )


def test_keys_of_robot_projects_are_lists_that_read_back_to_the_same_bits(walker):
    props = properties(walker.artefact_path("onnx"))
    assert props["joint_names"].split(",") == ["hip", "knee"]
    assert [float(text) for text in props["default_joint_pos"].split(",")] == NUMBERS[:2]
    assert [float(text) for text in props["joint_damping"].split(",")] == NUMBERS[2:]
    stiffness = np.asarray(props["joint_stiffness"].split(",")).astype(np.float32)
    assert stiffness.tobytes() == np.asarray([20.0, 0.1], np.float32).tobytes()
    assert props["action_scale"] == "0.1,0.1" and props["safe_action"] == "0.0,0.5"
    assert props["command_names"] == "velocity"
    assert props["observation_names"] == "joint_pos,joint_vel"


def test_our_keys_say_the_rest(walker):
    props = properties(walker.artefact_path("onnx"))
    assert json.loads(props["nnx_ppo.control_rate_hz"]) == 50.0
    assert json.loads(props["nnx_ppo.batch_size"]) is None
    assert props["nnx_ppo.name"] == "policy" and props["nnx_ppo.format_version"] == "1"
    (observation,) = json.loads(props["nnx_ppo.observation"])
    assert observation == {"name": "obs", "path": [], "shape": [8], "dtype": "float32"}
    metadata = json.loads(props["nnx_ppo.metadata"])
    assert metadata["quaternion_order"] == "wxyz" and metadata["extra"] == {"robot": "walker"}
    assert metadata["default_joint_positions"] == NUMBERS[:2]


def test_the_docs_list_every_key(walker):
    table = PAGE.read_text(encoding="utf-8")
    known = [*properties(walker.artefact_path("onnx")), "action_offset", "action_low"]
    assert all(f"`{key}`" in table for key in known)


def test_a_scale_that_the_step_applies_is_not_offered_to_be_applied_again(walker):
    manifest = msgspec.structs.replace(
        walker.manifest,
        metadata=Metadata(action_scale=2.0, action_offset=1.0, action_applied_by="policy"),
    )
    props = onnx_metadata(manifest, {})
    assert "action_scale" not in props and "action_offset" not in props
    assert json.loads(props["nnx_ppo.metadata"])["action_scale"] == 2.0


def test_a_carry_that_is_not_finite_reads_back(exported):
    bundle = exported("plain_lstm_trainable").bundle
    (port, *_) = bundle.manifest.carry_ports
    initial = {p.name: bundle.initial_carry[p.name] for p in bundle.manifest.carry_ports}
    odd = np.linspace(-1, 1, port.shape[0], dtype=np.float32)
    odd[:4] = [np.inf, -np.inf, np.nan, -0.0]
    initial[port.name] = odd
    (entry, *_) = json.loads(onnx_metadata(bundle.manifest, initial)["nnx_ppo.carry"])
    assert np.asarray(entry["initial"], entry["dtype"]).tobytes() == odd.tobytes()
    initial[port.name] = np.full(port.shape, np.inf, np.float32)
    (entry, *_) = json.loads(onnx_metadata(bundle.manifest, initial)["nnx_ppo.carry"])
    assert entry["initial"] == "inf"


def test_a_name_with_a_comma_is_refused(tmp_path):
    network, observation = export_networks.make("mlp")
    with pytest.raises(ExportError, match=r"joint_names\[1\] is 'a,b'.*Rename it"):
        export_policy(
            network,
            observation,
            tmp_path / "policy",
            formats=["onnx"],
            metadata={"joint_names": ["hip", "a,b"]},
        )
    assert list(tmp_path.iterdir()) == []


def test_the_properties_are_in_one_order(walker):
    keys = [entry.key for entry in onnx.load(walker.artefact_path("onnx")).metadata_props]
    assert keys == sorted(keys)


PORTS = [Port("action.arm", ["arm"], [2, 1], "float32"), Port("action.grip", ["grip"], [], "int32")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0.5, [[[0.5], [0.5]], 0.5]),
        ([1, 2, 3], [[[1], [2]], 3]),
        ({"action.arm": [1, 2], "action.grip": 3}, [[[1], [2]], 3]),
        ({"action.arm": 7, "action.grip": [3]}, [[[7], [7]], 3]),
    ],
)
def test_action_values_take_the_shape_of_the_ports(given, expected):
    arrays = action_values(metadata_from({"safe_action": given}), "safe_action", PORTS)
    assert arrays is not None
    for array, port, values in zip(arrays, PORTS, expected, strict=True):
        assert array.shape == tuple(port.shape)
        np.testing.assert_array_equal(array, np.asarray(values, np.float64))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"action_scale": [1.0, 2.0]}, "action_scale has 2 numbers, but the action has 3"),
        ({"safe_action": {"action.arm": 1.0}}, "safe_action names .*expected the action ports"),
        (
            {"action_low": {"action.arm": [0.0], "action.grip": 1}},
            "action_low has 1 numbers for action.arm, which has 2",
        ),
        ({"action_low": 1.0, "action_high": [1, 0, 1]}, "element 1 of action.arm: 1.0 > 0.0"),
    ],
)
def test_action_values_that_do_not_fit_are_refused(metadata, message):
    with pytest.raises(BundleError, match=message):
        check_action_values(metadata_from(metadata), PORTS)


def test_a_field_and_its_alias_together_are_refused():
    with pytest.raises(BundleError, match="default_joint_pos is another name of"):
        metadata_from({"default_joint_pos": [1.0], "default_joint_positions": [1.0]})
