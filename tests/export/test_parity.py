"""Every network of the library acts the same in every format, over a long trajectory."""

from __future__ import annotations

import json

import export_networks
import jax
import numpy as np
import pytest
from flax import nnx

from export import ParityError, verify_parity
from export.port_errors import PortErrors, measure
from export.prng_keys import without_key_type

ARTEFACTS = ["stablehlo", "saved_model", "saved_model_xla", "onnx"]


LONG = ("lstm",)
"""Networks that are followed for a thousand steps each time; the others in the slow part."""


@pytest.mark.parametrize("name", list(export_networks.NETWORKS))
def test_every_format_follows_the_network(exported, name):
    case = exported(name)
    large = verify_parity(case.bundle, case.network, steps=40, batch_sizes=(64,))
    assert large.passed, large.summary
    steps = 1000 if name in LONG else 100
    report = verify_parity(case.bundle, case.network, steps=steps, batch_sizes=(1, 3))
    assert report.passed, report.summary
    assert {c.runtime for c in report.comparisons} == set(ARTEFACTS)
    assert {c.batch_size for c in report.comparisons} == {1, 3}
    bounds = {c.runtime: c.tolerance for c in report.comparisons}
    assert bounds == {
        "stablehlo": 2e-6,
        "saved_model": 1e-5,
        "saved_model_xla": 1e-5,
        "onnx": 1e-5,
    }
    ports = {port.name for c in report.comparisons for port in c.ports}
    manifest = case.bundle.manifest
    assert ports == {port.name for port in manifest.action_ports} | {
        port.next_name for port in manifest.carry_ports
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", list(export_networks.NETWORKS))
def test_every_artefact_agrees_with_the_network_for_a_thousand_steps(exported, name):
    case = exported(name)
    report = verify_parity(case.bundle, case.network, steps=1000, write=False)
    assert report.passed, report.summary


def test_another_network_of_the_same_shape_fails_and_the_report_says_where(exported):
    case = exported("lstm")
    other, _ = export_networks.make("lstm", seed=5)
    report = verify_parity(
        case.bundle, other, steps=20, batch_sizes=(2,), runtimes=["onnx"], write=False
    )
    assert not report.passed
    worst = report.comparisons[0].worst
    assert worst.violations > 20 and worst.max_abs_error > 1e-3
    assert "FAIL" in report.summary


def test_a_network_with_another_carry_is_refused(exported):
    case = exported("lstm")
    other, _ = export_networks.make("gru")
    with pytest.raises(ParityError, match="pass the network that was exported"):
        verify_parity(case.bundle, other, steps=10, batch_sizes=(1,))


def test_the_report_lands_in_the_bundle_as_json_and_page(exported):
    case = exported("population_graph")
    report = verify_parity(case.bundle, case.network, steps=30, batch_sizes=(2,))
    saved = json.loads((case.bundle.path / "parity.json").read_text())
    assert saved["passed"] is True and saved["steps"] == 30
    assert saved["comparisons"][0]["ports"][0]["name"] == "action"
    page = (case.bundle.path / "report.html").read_text()
    assert "polyline" in page and "populations.inter.buffer" in page
    assert report.artefact_bytes["onnx"] == (case.bundle.path / "onnx/policy.onnx").stat().st_size


def test_recorded_observations_are_used_in_time_order(exported):
    case = exported("gru")
    recorded = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    report = verify_parity(
        case.bundle,
        case.network,
        observations=recorded,
        steps=40,
        batch_sizes=(1, 2),
        runtimes=["onnx"],
        write=False,
    )
    assert report.passed and report.observations == "recorded"


def test_a_difference_of_one_ulp_and_a_nan_are_measured():
    expected = np.ones((4, 2, 3), np.float32)
    actual = expected.copy()
    actual[2, 1, 0] = np.nextafter(np.float32(1), np.float32(2))
    result = measure("action", actual, expected, 1e-5)
    assert (result.max_ulp, result.worst_step, result.violations) == (1, 2, 0)
    actual[3, 0, 0] = np.nan
    result = measure("action", actual, expected, 1e-5)
    assert (result.worst_step, result.worst_row, result.violations) == (3, 0, 1)
    assert result.max_abs_error == np.inf
    expected[3, 0, 0] = np.nan
    result = measure("action", actual, expected, 1e-5)
    assert (result.equal_nans, result.violations) == (1, 0)


def test_what_is_measured_piece_by_piece_is_what_the_whole_gives():
    generator = np.random.default_rng(0)
    expected = generator.normal(size=(50, 3, 4)).astype(np.float32)
    actual = expected + generator.normal(size=expected.shape).astype(np.float32) * 1e-5
    actual[7:30] = expected[7:30]
    actual[12, 1, 2] = expected[12, 1, 2] = np.nan
    actual[13, 1, 2] = expected[13, 1, 2] = -np.inf
    whole = measure("action", actual, expected, 1e-5)
    pieces = PortErrors("action", 1e-5)
    for first in range(0, 50, 9):
        pieces.add(actual[first : first + 9], expected[first : first + 9])
    assert pieces.result() == whole
    with np.errstate(invalid="ignore"):
        error = np.abs(actual.astype(np.float64) - expected)
    excess = np.nan_to_num(error - 1e-5 - 1e-5 * np.abs(expected), nan=-1.0, neginf=-1.0)
    assert whole.max_abs_error == np.nanmax(error)
    assert whole.violations == np.count_nonzero(excess > 0)
    place = np.unravel_index(np.argmax(excess), excess.shape)
    assert (whole.worst_step, whole.worst_row, whole.equal_nans) == (place[0], place[1], 1)


SPREAD = {
    "near": lambda draw, e: e * (1.0 + draw.choice([0.0, 1e-7, 1e-5], e.shape)),
    "elsewhere": lambda draw, e: np.tanh(3.0 * draw.normal(size=e.shape)),
    "opposite": lambda draw, e: -e,
    "of any size": lambda draw, e: e * 10.0 ** draw.integers(-40, 30, e.shape),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("effect", [0.0, 1e-3])
@pytest.mark.parametrize("spread", SPREAD)
def test_what_is_passed_over_would_have_changed_nothing(spread, effect, dtype):
    """Each pair alone, in an order in which most are no news, gives what all at once give."""
    draw = np.random.default_rng(0)
    for scale in (1.0, 1e-30, 1e3):
        with np.errstate(over="ignore", under="ignore"):
            expected = (scale * draw.normal(size=(120, 2, 3))).astype(dtype)
            actual = SPREAD[spread](draw, expected.astype(np.float64)).astype(dtype)
        actual[50, 1, 2] = np.nan
        actual[60, 0], expected[60, 0] = np.inf, np.inf
        errors = PortErrors("action", 1e-5, effect)
        for t in range(120):
            errors.add(actual[t : t + 1], expected[t : t + 1])
        assert errors.result() == measure("action", actual, expected, 1e-5, effect)


def test_long_integers_that_are_equal_as_floats_are_not_equal():
    expected = np.full((2, 1), 2**62, np.int64)
    result = measure("count", expected + 1, expected, 1e-5)
    assert (result.violations, result.max_abs_error) == (2, 1.0)


def test_integers_must_be_equal():
    expected = np.arange(6, dtype=np.int32).reshape(3, 2)
    actual = expected.copy()
    actual[1, 1] += 1
    assert measure("count", actual, expected, 1e-5).violations == 1


def test_a_fixed_batch_is_compared_at_that_batch_only(tmp_path):
    from export import export_policy

    network, observation = export_networks.make("lstm")
    bundle = export_policy(network, observation, tmp_path / "policy", batch_size=4)
    report = verify_parity(bundle, network, steps=60)
    assert report.passed, report.summary
    assert {c.batch_size for c in report.comparisons} == {4}


def test_the_network_is_the_same_after_a_comparison(exported):
    case = exported("ar1")
    before = [np.asarray(x) for x in _arrays(case.network)]
    verify_parity(case.bundle, case.network, steps=10, batch_sizes=(1,), runtimes=["onnx"])
    after = [np.asarray(x) for x in _arrays(case.network)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def _arrays(network):
    return [without_key_type(x) for x in jax.tree.leaves(nnx.split(network)[1])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerances": {"onnx": float("nan")}}, "tolerances: 'onnx' is nan"),
        ({"tolerances": {"onnx": -1.0}}, "tolerances: 'onnx' is -1.0"),
        ({"tolerances": {"onxx": 1.0}}, "tolerances: 'onxx'"),
        ({"batch_sizes": (0,)}, "batch_sizes"),
        ({"steps": 2}, "steps"),
        ({"seed": -1}, "seed"),
        ({"runtimes": ["tflite"]}, "runtimes"),
    ],
)
def test_a_comparison_that_would_prove_nothing_is_refused(exported, options, message):
    case = exported("mlp")
    with pytest.raises(ParityError, match=message):
        verify_parity(case.bundle, case.network, write=False, **{"steps": 5, **options})
