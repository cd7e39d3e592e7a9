"""A network that amplifies rounding is not held against its artefacts, and hides no fault."""

from __future__ import annotations

import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from export import export_policy, verify_parity
from export.network_copy import reference_copy
from export.port_errors import PortErrors, measure
from export.rounding_effect import MARGIN, RoundingEffect
from export.trajectory import ReferenceRun, generate_observations, reset_schedule
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from serving import read_bundle
from serving.overview import verdict_on
from serving.parity_record import read_parity

OBS = np.zeros(4, np.float32)
STEPS = 200


class Recurrent(StatefulModule):
    """`h = tanh(gain * W h + V x)`; with a gain well above one it is chaotic."""

    def __init__(self, gain, *, cut_off=0.0):
        draw = np.random.default_rng(0).normal
        self.kernel = nnx.Param(jp.asarray(gain * draw(0.0, 48**-0.5, (48, 48)), jp.float32))
        self.inputs = nnx.Param(jp.asarray(draw(0.0, 0.5, (4, 48)), jp.float32))
        self.cut_off = cut_off

    def initialize_state(self, batch_size):
        return jp.zeros((batch_size, 48))

    def reset_state(self, prev_state):
        return jp.zeros_like(prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        total = module_state @ self.kernel[...] + obs @ self.inputs[...]
        state = jp.tanh(total) + self.cut_off
        return StatefulModuleOutput(state, state[:, :2], jp.array(0.0), {})


@pytest.fixture(scope="module")
def chaotic(tmp_path_factory):
    network = Recurrent(3.0)
    path = tmp_path_factory.mktemp("chaotic") / "policy"
    return network, export_policy(network, OBS, path)


def test_a_chaotic_network_passes_and_the_report_says_why(chaotic):
    network, bundle = chaotic
    report = verify_parity(bundle, network, steps=STEPS, batch_sizes=(2,))
    assert report.passed, report.summary
    forced = [c for c in report.comparisons if c.mode == "teacher_forced"]
    assert all(c.rounding_effect == 0.0 for c in forced)
    astray = [c for c in report.comparisons if c.rounding_effect]
    assert {c.runtime for c in astray} >= {"saved_model", "onnx"}
    for comparison in astray:
        assert comparison.tolerance < comparison.worst.max_abs_error < comparison.rounding_effect
        assert "1e-05 + " in report.summary
    record = read_parity(bundle.path)
    assert record is not None and record.passed and record.comparisons == report.comparisons
    verdict = verdict_on(read_bundle(bundle.path))
    assert verdict.state == "passed"
    assert any("amplifies rounding" in line for line in verdict.details)


def test_a_step_that_is_wrong_by_little_fails_all_the_same(chaotic):
    _, bundle = chaotic
    other = Recurrent(3.0, cut_off=1e-4)
    report = verify_parity(bundle, other, steps=STEPS, batch_sizes=(2,), write=False)
    assert not any(c.passed for c in report.comparisons)
    assert all(c.rounding_effect == 0.0 for c in report.comparisons)


def test_a_network_that_forgets_is_moved_no_further_than_it_is_disturbed(tmp_path):
    network = Recurrent(0.3)
    bundle = export_policy(network, OBS, tmp_path / "policy", formats=["onnx"])
    manifest, copy = bundle.manifest, reference_copy(network)
    observations = generate_observations(manifest, network, 60, 2)
    run = ReferenceRun(manifest, copy, observations, reset_schedule(60, 2))
    effect, effects = RoundingEffect(run), {}
    name = manifest.carry_ports[0].next_name
    for size in (1e-9, 1e-3):
        effects[size] = effect.of({name: size, "action": 0.0})
        assert all(values.shape == (60,) for values in effects[size].values())
        assert all((np.diff(values) >= 0).all() for values in effects[size].values())
    assert 0 < effects[1e-9][name].max() / MARGIN < 1e-6
    assert 1e-3 <= effects[1e-3][name].max() / MARGIN < 2e-3
    assert 0 < effects[1e-3]["action"].max() / MARGIN < 1e-3
    # Nothing has moved the first action yet.
    assert effects[1e-3]["action"][0] == 0.0
    # Where no single step is off at all, there is no rounding to go astray by.
    assert effect.of({name: 0.0, "action": 0.0}) == {}


def test_an_error_before_the_effect_grows_is_a_failure():
    expected, effect = np.zeros((4, 1, 2), np.float32), np.array([0.0, 1e-6, 0.1, 0.7])
    actual = expected.copy()
    actual[3] = 0.5
    found = measure("a", actual, expected, 1e-5, effect)
    assert found.violations == 0 and found.rounding_effect == 0.7
    actual[1, 0, 1] = 0.5
    found = measure("a", actual, expected, 1e-5, effect)
    assert (found.violations, found.worst_step) == (1, 1)


def test_each_step_is_widened_by_its_own_effect_whenever_that_is_known():
    expected = np.zeros((4, 1, 2), np.float32)
    actual = expected + np.float32([1e-6, 2e-6, 5e-4, 5e-4]).reshape(4, 1, 1)
    errors = PortErrors("a", 1e-5)
    errors.add(actual[:2], expected[:2])
    errors.widen(np.array([0.0, 0.0, 0.0, 1e-3]))
    errors.add(actual[2:], expected[2:])
    found = errors.result()
    assert (found.violations, found.worst_step, found.rounding_effect) == (2, 2, 1e-3)
    assert found.max_abs_error == pytest.approx(5e-4)


def test_the_effect_widens_the_bound_of_floats_only():
    expected = np.zeros((3, 1, 2), np.float32)
    assert measure("a", expected + 0.5, expected, 1e-5, 0.4).violations == 6
    found = measure("a", expected + 0.5, expected, 1e-5, 0.6)
    assert found.violations == 0 and found.rounding_effect == 0.6
    counts = np.zeros((3, 1, 2), np.int32)
    assert measure("a", counts + 1, counts, 1e-5, 9.0).violations == 6
    assert measure("a", expected * np.nan, expected, 1e-5, 9.0).violations == 6
