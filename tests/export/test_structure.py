"""Trees are described so that nothing is lost, and every leaf has a name of its own everywhere."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest

from export import ObservationSpecError, export_policy
from export.step import build_step
from export.structure import leaf_names
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from serving import load_policy

ONE = np.zeros(1, np.float32)


class SumOfLeaves(StatefulModule):
    """Weighs the leaves by their position, so that an exchange shows."""

    def __call__(self, module_state, obs, rollout_extras=None):
        total = sum(10.0**n * leaf for n, leaf in enumerate(jax.tree.leaves(obs)))
        return StatefulModuleOutput((), total, jp.array(0.0), {})


def test_names_differ_also_without_case_dots_and_dashes():
    paths: list[Any] = [("a", "b"), ("a_b",), ("a.b",), ("A_b",), ("a-b",), ("a_b_2",)]
    assert leaf_names("obs", paths) == [
        "obs.a.b", "obs.a_b_2", "obs.a_b_3", "obs.A_b_4", "obs.a-b_5", "obs.a_b_2_2",
    ]  # fmt: skip


@pytest.mark.parametrize("runtime", ["onnx", "saved_model"])
def test_keys_that_tensorflow_cannot_tell_apart_reach_their_own_leaf(tmp_path, runtime):
    observation = {"A": ONE, "a": {"b": ONE}, "a.b": ONE, "a_b": ONE, "ä": ONE, "ö": ONE}
    bundle = export_policy(
        SumOfLeaves(),
        observation,
        tmp_path / "policy",
        formats=[runtime],
        saved_model_flavours=["portable"],
    )
    given = {"A": 1.0, "a": {"b": 2.0}, "a.b": 3.0, "a_b": 4.0, "ä": 5.0, "ö": 6.0}
    given = jax.tree.map(lambda value: np.full(1, value, np.float32), given)
    assert load_policy(bundle, runtime=runtime).session().step(given) == [654321.0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Reading:
    force: Any
    unit: str = dataclasses.field(default="N", metadata={"static": True})


def test_a_static_field_at_its_default_is_fine():
    assert build_step(SumOfLeaves(), Reading(ONE)).observation_ports[0].name == "obs.force"


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (Reading(ONE, unit="lbf"), "field 'unit' holds no array and differs from its default"),
        ({1: ONE, "one": ONE}, "must all be str or all be int"),
        ({True: ONE}, "must all be str or all be int"),
        (collections.OrderedDict(z=ONE, a=ONE), "OrderedDict whose keys are in the order"),
    ],
)
def test_what_a_description_would_lose_is_refused(observation, message):
    with pytest.raises(ObservationSpecError, match=message):
        build_step(SumOfLeaves(), observation)


def test_a_sorted_ordered_dict_is_fine():
    observation = collections.OrderedDict(a=ONE, z=ONE)
    assert len(build_step(SumOfLeaves(), observation).observation_ports) == 2
