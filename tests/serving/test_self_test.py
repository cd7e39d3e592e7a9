import json

import numpy as np
import pytest

from serving import ServingError, load_policy, self_test

NAMES = ["action.gripper", "action.joints", "next_carry.count", "next_carry.hidden"]


def test_a_sound_policy_passes_with_an_error_for_every_port(bundle_path):
    report = self_test(load_policy(bundle_path))
    assert report.passed
    assert (report.policy, report.runtime) == ("leaky", "onnx")
    assert (report.steps, report.batch_size) == (40, 3)
    assert (report.max_abs_error, report.max_rel_error) == (1e-5, 1e-5)
    assert [port.name for port in report.ports] == [*NAMES, "next_carry.total", "value"]
    for port in report.ports:
        assert port.passed and port.max_abs_error < 1e-5 and port.non_finite == 0
    assert report.ports[2].max_abs_error == 0.0


def test_the_report_is_json(bundle_path):
    report = self_test(load_policy(bundle_path))
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert values["passed"] is True and len(values["ports"]) == 6
    assert set(values["ports"][0]) == {
        *["name", "max_abs_error", "max_rel_error", "worst_step", "non_finite", "passed"]
    }


def altered(leaky, path, name, change):
    golden = leaky.golden()
    golden[name] = golden[name].copy()
    change(golden[name])
    return self_test(load_policy(leaky.write(path, golden=golden)))


def test_a_difference_in_one_action_fails_and_is_located(leaky, tmp_path):
    def change(values):
        values[17, 1, 2] += 1e-3

    report = altered(leaky, tmp_path / "b", "action.joints", change)
    assert not report.passed
    assert [port.name for port in report.ports if not port.passed] == ["action.joints"]
    assert report.ports[1].worst_step == 17
    assert report.ports[1].max_abs_error == pytest.approx(1e-3, rel=0.01)


def test_a_difference_of_one_in_a_counter_fails(leaky, tmp_path):
    def change(values):
        values[30, 0] += 1

    report = altered(leaky, tmp_path / "b", "next_carry.count", change)
    assert [port.name for port in report.ports if not port.passed] == ["next_carry.count"]
    assert report.ports[2].worst_step == 30 and report.ports[2].max_abs_error == 1.0


def test_resets_are_replayed(leaky, tmp_path):
    def change(values):
        row = int(np.argmax(values[1:].any(1))) + 1
        values[row] = False

    report = altered(leaky, tmp_path / "b", "reset", change)
    failed = {port.name for port in report.ports if not port.passed}
    assert {"next_carry.count", "next_carry.hidden"} <= failed


def test_a_nan_on_one_side_fails_and_is_null_in_json(leaky, tmp_path):
    def change(values):
        values[5, 0, 0] = np.nan

    report = altered(leaky, tmp_path / "b", "next_carry.hidden", change)
    port = report.ports[3]
    assert not port.passed and port.non_finite == 1 and port.worst_step == 5
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert values["ports"][3]["max_abs_error"] is None and values["passed"] is False


def test_equal_nans_pass(leaky, tmp_path):
    golden = leaky.golden()
    golden["obs.goal"][20, 1] = np.nan
    golden["next_carry.total"][20:, 1] = np.nan
    golden["action.gripper"][20:, 1] = np.nan
    report = self_test(load_policy(leaky.write(tmp_path / "b", golden=golden)))
    assert report.passed and sum(port.non_finite for port in report.ports) == 0


def test_tolerances_can_be_chosen(bundle_path, leaky, tmp_path):
    golden = leaky.golden()
    golden["action.joints"] += 1e-3
    policy = load_policy(leaky.write(tmp_path / "b", golden=golden))
    assert not self_test(policy).passed
    assert self_test(policy, max_abs_error=2e-3).passed
    assert not self_test(policy, max_abs_error=5e-4, max_rel_error=0.0).passed
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ServingError, match="must be finite and not negative"):
            self_test(policy, max_abs_error=bad)


def test_large_integers_are_compared_exactly():
    from serving.self_test import compare_port

    expected = np.array([[2**62]], np.int64)
    comparison = compare_port("n", expected + 1, expected, 1.0, 1.0)
    assert not comparison.passed and comparison.worst_step == 0
