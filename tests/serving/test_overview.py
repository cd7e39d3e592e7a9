"""What people are told about a bundle is what its files say."""

import dataclasses

import msgspec
import pytest

from serving import overview, read_bundle
from serving.manifest import metadata_from
from serving.structure import Module, Normalizer, Structure, Variable


@pytest.fixture(scope="module")
def bundle(bundle_path):
    return read_bundle(bundle_path)


def notes_with(bundle, metadata=None, **changes):
    fields = {} if metadata is None else {"metadata": metadata_from(metadata)}
    structure = changes.pop("structure", bundle.structure)
    manifest = msgspec.structs.replace(bundle.manifest, **fields, **changes)
    changed = dataclasses.replace(bundle, manifest=manifest, structure=structure)
    return {note.label: note for note in overview.session_notes(changed)}


def test_facts_count_numbers_tensors_and_bytes(bundle):
    facts = dict(overview.key_facts(bundle).rows)
    assert facts["control rate"] == "50 Hz, 20.0 ms per step"
    assert facts["observation"] == "6 numbers in 3 tensors, 18 B"
    assert facts["carry"] == "5 numbers in 3 tensors, 20 B"
    assert facts["batch size"] == "any"


def test_a_session_is_told_what_to_keep_and_what_a_reset_leaves(bundle):
    notes = notes_with(bundle)
    assert notes["carry"].text == (
        "Keep 5 numbers in 3 tensors, 20 B for each robot between steps; a reset leaves "
        "carry.total alone and sets the rest to initial values."
    )
    assert "obs.privileged" in notes["not needed"].text
    assert notes["safe action"].level == "attention"
    assert notes["normalization"].level == "attention"


def test_who_applies_scale_and_limits_is_said_or_asked_for(bundle):
    assert "no scale" in notes_with(bundle, {})["action"].text
    both = {"action_scale": 0.5, "action_offset": 0.1}
    assert notes_with(bundle, both)["action"].level == "attention"
    assert notes_with(bundle, {**both, "action_applied_by": "policy"})["action"].text == (
        "The step applies scale and offset itself: apply nothing."
    )
    by_robot = notes_with(bundle, {**both, "action_low": -1.0, "action_applied_by": "robot"})
    assert by_robot["action"].text.startswith("Apply scale, offset and limits before sending")


def test_a_missing_rate_is_pointed_out(bundle):
    assert notes_with(bundle, control_rate_hz=None)["rate"].level == "attention"


@pytest.mark.parametrize(
    ("normalizers", "level", "words"),
    [
        ([], "attention", "holds no Normalizer"),
        ([Normalizer(path="layers.0", samples=0.0)], "attention", "has seen no observation"),
        ([Normalizer(path="layers.0", samples=2e6)], "fine", "layers.0 (2,000,000 observations)"),
    ],
)
def test_whether_observations_are_normalized_is_said(bundle, normalizers, level, words):
    root = Module(path="", name="network", depth=0, type="MLP", class_path="m:MLP")
    structure = Structure(modules=[root], normalizers=normalizers)
    note = notes_with(bundle, structure=structure)["normalization"]
    assert note.level == level and words in note.text


def test_parameters_that_are_exported_are_told_from_all(bundle):
    def module(path, depth, size, operations):
        variable = Variable(name="w", kind="Param", shape=[size], dtype="float32", trained=True)
        return Module(
            path=path,
            name=path,
            depth=depth,
            type="T",
            class_path="m:T",
            variables=[variable] if size else [],
            parameters=7 if depth == 0 else size,
            operations=operations,
        )

    modules = [module("", 0, 0, 3), module("a", 1, 5, 3), module("b", 1, 2, 0)]
    changed = dataclasses.replace(bundle, structure=Structure(modules=modules))
    assert dict(overview.key_facts(changed).rows)["parameters"] == "5 exported of 7"


def test_action_elements_carry_their_joints_and_numbers(bundle):
    metadata = {
        "joint_names": {"action.joints": ["a", "b", "c"], "action.gripper": ["g"]},
        "action_scale": {"action.joints": [0.1, 0.2, 0.3], "action.gripper": 2.0},
        "safe_action": 0.0,
        "action_offset": [1.0, 2.0],  # two numbers for four elements: cannot be laid out
    }
    manifest = msgspec.structs.replace(bundle.manifest, metadata=metadata_from(metadata))
    table = overview.joint_table(dataclasses.replace(bundle, manifest=manifest))
    assert table.headers == ("element", "joint", "scale", "safe action")
    assert table.rows[0] == ("action.gripper", "g", "2", "0")
    assert table.rows[3] == ("action.joints[2]", "c", "0.3", "0")


def test_nothing_about_the_action_is_no_table(bundle):
    manifest = msgspec.structs.replace(bundle.manifest, metadata=metadata_from({}))
    assert overview.joint_table(dataclasses.replace(bundle, manifest=manifest)).rows == []


def test_carry_says_what_kind_it_is_and_where_it_starts(bundle):
    rows = {row[0]: row for row in overview.carry_table(bundle).rows}
    assert rows["carry.total"] == (
        "carry.total",
        "state",
        "4 B",
        "left alone",
        "1.5",
        "next_carry.total",
    )
    assert rows["carry.hidden"][4] == "-0.2 … 0.3"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hip\x1b[2J", r"hip\x1b[2J"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("人形 é ✓ <b>", "人形 é ✓ <b>"),
    ],
)
def test_what_cannot_be_seen_is_shown_as_its_escape(text, shown):
    assert overview.printable(text) == shown


def test_durations_and_sizes_keep_three_figures_over_nine_decades():
    assert [overview.duration(us) for us in (0.0, 0.01, 1.0, 999.4, 999.6, 5e4, 1e6, 9e7)] == [
        *("0 µs", "0.010 µs", "1.00 µs", "999 µs", "1.00 ms", "50.0 ms", "1.00 s", "90.0 s"),
    ]
    assert overview.byte_size(1_234_567) == "1.2 MB"
