"""Arguments of an export that do not fit are refused before anything is written."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import export_networks
import jax
import jax.numpy as jp
import numpy as np
import pytest

from export import (
    ExportError,
    NetworkError,
    ObservationSpecError,
    ParityError,
    export_policy,
    verify_parity,
)
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from serving import BundleError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stablehlo_platforms": ["gpu0"]}, "stablehlo_platforms must be"),
        ({"stablehlo_platforms": "cpu"}, "stablehlo_platforms must be"),
        ({"stablehlo_platforms": ()}, "stablehlo_platforms must be"),
        ({"control_rate_hz": float("nan")}, "control_rate_hz must be"),
        ({"formats": "onnx"}, "formats must be a list"),
        ({"formats": ["onxx"]}, "formats must be a list"),
        ({"formats": []}, "formats must be a list"),
        ({"formats": None}, "formats must be a list"),
        ({"batch_size": "2"}, "batch_size must be None or an integer"),
        ({"batch_size": True}, "batch_size must be None or an integer"),
        ({"batch_size": 0}, "batch_size must be None or an integer"),
        ({"batch_size": 2.5}, "batch_size must be None or an integer"),
        ({"control_rate_hz": "50"}, "control_rate_hz must be a positive number"),
        ({"control_rate_hz": -1}, "control_rate_hz must be a positive number"),
        ({"control_rate_hz": True}, "control_rate_hz must be a positive number"),
        ({"extra_outputs": "value"}, "extra_outputs must be a list of names"),
        ({"name": 5}, "name must be None or printable text"),
        ({"name": "a\nb"}, "name must be None or printable text"),
        ({"metadata": {"gains": {1, 2}}}, "gains: set cannot be stored as JSON"),
        ({"metadata": {"gains": float("nan")}}, "gains is nan; only finite numbers"),
        ({"metadata": "robot"}, "expected a mapping, got str"),
    ],
)
@pytest.mark.usefixtures("types_unchecked")
def test_choices_that_do_not_exist_leave_nothing_behind(tmp_path, options, message):
    network, observation = export_networks.make("mlp")
    with pytest.raises((ExportError, BundleError), match=message):
        export_policy(network, observation, tmp_path / "policy", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be an integer of at least 3"),
        ({"steps": "9"}, "steps must be an integer of at least 3"),
        ({"batch_sizes": ()}, "batch_sizes must be a list of integers above 0"),
        ({"batch_sizes": 3}, "batch_sizes must be a list of integers above 0"),
        ({"batch_sizes": (1, True)}, "batch_sizes must be a list of integers above 0"),
        ({"batch_sizes": "13"}, "batch_sizes must be a list of integers above 0"),
        ({"runtimes": "onnx"}, "runtimes must name artefacts"),
    ],
)
@pytest.mark.usefixtures("types_unchecked")
def test_a_comparison_that_cannot_be_made_is_one_clear_error(exported, options, message):
    made = exported("mlp")
    with pytest.raises(ParityError, match=message):
        verify_parity(made.bundle, made.network, **options)


class Adds(StatefulModule):
    """Adds up whatever it observes, and carries a leaf of a given shape."""

    def __init__(self, carried=(1,)):
        self.carried = carried

    def initialize_state(self, batch_size):
        return jp.zeros((batch_size, *self.carried))

    def __call__(self, module_state, obs, rollout_extras=None):
        joined = jp.concatenate([*jax.tree.leaves(obs), module_state], axis=-1)
        total = joined.sum(axis=-1, keepdims=True)
        return StatefulModuleOutput(module_state + 1.0, total, jp.array(0.0), {})


@pytest.mark.parametrize(
    ("network", "observation", "leaf"),
    [
        (Adds(), {"a": np.zeros(2, np.float32), "empty": np.zeros(0, np.float32)}, "obs.empty"),
        (Adds((0,)), {"a": np.zeros(2, np.float32)}, "carry"),
    ],
)
def test_a_leaf_without_elements_is_refused_by_name(tmp_path, network, observation, leaf):
    with pytest.raises(NetworkError, match=rf"{leaf} has the shape \[0\], so it holds no element"):
        export_policy(network, observation, tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


def test_a_class_inside_a_function_is_refused_by_name(tmp_path):
    class Reading(NamedTuple):
        joints: np.ndarray

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Sensors:
        joints: np.ndarray

    for cls in (Reading, Sensors):
        observation = {"arm": cls(np.zeros(3, np.float32))}
        with pytest.raises(
            ObservationSpecError,
            match=rf"observation\.arm is a .*<locals>\.{cls.__name__}, .* top level .* a dict",
        ):
            export_policy(Adds(), observation, tmp_path / "policy", formats=["stablehlo"])
    assert list(tmp_path.iterdir()) == []


class Reading(NamedTuple):
    joints: np.ndarray


def test_a_class_that_was_replaced_under_its_name_is_refused(tmp_path, monkeypatch):
    observation = Reading(np.zeros(3, np.float32))
    monkeypatch.setitem(globals(), "Reading", NamedTuple("Reading", [("joints", np.ndarray)]))
    with pytest.raises(ObservationSpecError, match="cannot be imported by that name"):
        export_policy(Adds(), observation, tmp_path / "policy", formats=["stablehlo"])
