"""An argument of the wrong type or size is one clear error of this package."""

import numpy as np
import pytest

from serving import (
    BundleError,
    BundleWriter,
    ControlLoop,
    LoopError,
    RuntimeUnavailableError,
    ServingError,
    load_policy,
    read_bundle,
)
from serving.manifest import metadata_from

pytestmark = pytest.mark.usefixtures("types_unchecked")


@pytest.fixture(scope="module")
def policy(bundle_path):
    return load_policy(bundle_path)


@pytest.mark.parametrize("batch_size", ["2", 0, -1, True, 2.5, float("nan"), [2]])
def test_a_batch_size_that_cannot_be(policy, batch_size):
    for make in (policy.session, policy.initial_carry):
        with pytest.raises(ServingError, match="batch_size is .*, expected None or an integer"):
            make(batch_size)


@pytest.mark.parametrize("rate_hz", ["50", float("nan"), float("inf"), 0, -1, True, [50.0]])
def test_a_rate_that_cannot_be(policy, rate_hz):
    with pytest.raises(LoopError, match="rate_hz is .*, expected a positive number"):
        ControlLoop(policy.session(), dict, print, rate_hz=rate_hz)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"duration_s": "1"}, "duration_s is '1', expected None or a positive number"),
        ({"duration_s": True}, "duration_s is True"),
        ({"duration_s": float("nan")}, "duration_s is nan"),
        ({"steps": 0}, "steps is 0, expected None or an integer of at least 1"),
        ({"steps": "3"}, "steps is '3'"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"steps": True}, "steps is True"),
    ],
)
def test_a_limit_that_cannot_be(policy, limits, message):
    loop = ControlLoop(policy.session(), dict, print, rate_hz=50.0)
    with pytest.raises(LoopError, match=message):
        loop.run(**limits)
    assert loop.report is None


def test_a_callback_that_cannot_be_called(policy):
    with pytest.raises(LoopError, match="read is None, expected a function"):
        ControlLoop(policy.session(), None, print, rate_hz=50.0)
    with pytest.raises(LoopError, match="apply is 5, expected a function"):
        ControlLoop(policy.session(), dict, 5, rate_hz=50.0)


@pytest.mark.parametrize("path", [None, 5, b"policy", ["policy"]])
def test_a_path_that_is_none(path):
    for use in (read_bundle, load_policy, BundleWriter):
        with pytest.raises(BundleError, match="is a .*, expected a str or a Path"):
            use(path)


def test_a_name_that_no_file_can_have_cannot_be_written(tmp_path):
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(BundleError, match="cannot be written: .*choose another target"):
            BundleWriter(f"{tmp_path}/new/{name}").__enter__()
        with pytest.raises(BundleError, match="does not exist"):
            read_bundle(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("runtime", [None, 5, ["onnx"], "ONNX"])
def test_a_runtime_that_is_none(bundle_path, runtime):
    with pytest.raises(RuntimeUnavailableError, match="unknown runtime .*; known are"):
        load_policy(bundle_path, runtime)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1], "expected a mapping, got list"),
        ({"x": {1, 2}}, "x: set cannot be stored as JSON"),
        ({"x": [1, {"y": object()}]}, "x.1.y: object cannot be stored as JSON"),
        ({"x": b"1"}, "x: bytes cannot be stored as JSON"),
        ({"x": float("nan")}, "x is nan; only finite numbers"),
        ({"action_scale": np.array([1.0, np.inf])}, "action_scale.1 is inf; only finite numbers"),
        ({"safe_action": "0"}, "safe_action"),
    ],
)
def test_metadata_that_is_not_json(values, message):
    with pytest.raises(BundleError, match=message):
        metadata_from(values)
