"""Metadata that belongs to the action's elements fits them, or the export is refused."""

from __future__ import annotations

import export_networks
import pytest

from export import ExportError, MetadataError, export_policy
from export.metadata_fit import fit_metadata
from serving.manifest import Port, metadata_from

FLAT = [Port("action", [], [2], "float32")]
ARMS = [
    Port("action.arm_L", ["arm_L"], [2], "float32"),
    Port("action.arm_R", ["arm_R"], [3], "float32"),
]
LIST_OF = {
    "joint_names": lambda n: [f"joint {i}" for i in range(n)],
    "default_joint_positions": lambda n: [0.5] * n,
    "action_scale": lambda n: [0.5] * n,
    "action_offset": lambda n: [0.5] * n,
    "action_low": lambda n: [0.5] * n,
    "action_high": lambda n: [0.5] * n,
    "safe_action": lambda n: [0.5] * n,
}


@pytest.mark.parametrize("field", LIST_OF)
def test_a_list_has_one_value_for_each_element_of_the_whole_action(field):
    for ports, width in [(FLAT, 2), (ARMS, 5)]:
        values = metadata_from({field: LIST_OF[field](width)})
        assert fit_metadata(values, ports) == values
        for wrong in (0, width - 1, width + 1):
            with pytest.raises(
                MetadataError,
                match=rf"metadata: {field} has {wrong} values, but the action has {width} elements",
            ):
                fit_metadata(metadata_from({field: LIST_OF[field](wrong)}), ports)


@pytest.mark.parametrize("field", LIST_OF)
def test_a_mapping_goes_by_leaf_and_is_kept_by_port(field):
    left, right = LIST_OF[field](2), LIST_OF[field](3)
    for key in ("arm_L", "action.arm_L"):
        fitted = fit_metadata(metadata_from({field: {"arm_R": right, key: left}}), ARMS)
        assert getattr(fitted, field) == {"action.arm_L": left, "action.arm_R": right}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arm_L": [1.0, 2.0]}, r"action_scale has no entry for action\.arm_R"),
        ({"arm_L": 1.0, "arm_R": 1.0, "leg": 1.0}, r"action_scale\.leg names no leaf of the act"),
        ({"arm_L": [1.0], "arm_R": 1.0}, r"action_scale\.arm_L has 1 values, .* 2 elements"),
        ({"arm_L": 1.0, "action.arm_L": 1.0, "arm_R": 1.0}, r"arm_L names a leaf twice"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(values, message):
    with pytest.raises(MetadataError, match=message):
        fit_metadata(metadata_from({"action_scale": values}), ARMS)


def test_one_number_holds_for_all():
    values = metadata_from({"action_scale": 0.5, "safe_action": {"arm_L": 0, "arm_R": [1, 2, 3]}})
    fitted = fit_metadata(values, ARMS)
    assert fitted.action_scale == 0.5
    assert fitted.safe_action == {"action.arm_L": 0.0, "action.arm_R": [1.0, 2.0, 3.0]}


def test_an_export_with_metadata_of_another_length_leaves_nothing_behind(tmp_path):
    network, observation = export_networks.make("mlp")
    with pytest.raises(ExportError, match="joint_names has 3 values, but the action has 2"):
        export_policy(
            network, observation, tmp_path / "policy", metadata={"joint_names": ["a", "b", "c"]}
        )
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_keeps_a_mapping_by_port(tmp_path):
    network, observation = export_networks.make("two_arm")
    names = {"arm_R": ["e", "f"], "arm_L": ["a", "b"]}
    bundle = export_policy(
        network,
        observation,
        tmp_path / "policy",
        formats=["stablehlo"],
        metadata={"joint_names": names},
    )
    assert bundle.manifest.metadata.joint_names == {
        "action.arm_L": ["a", "b"],
        "action.arm_R": ["e", "f"],
    }
