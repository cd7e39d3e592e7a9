"""Tests of frozen dataclasses as pytrees."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jp
import pytest

from nnx_ppo.jax_dataclass import JaxDataclass
from nnx_ppo.networks.types import PPONetworkOutput, StatefulModuleOutput


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Counters(JaxDataclass):
    steps: int
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_fields_are_children_in_field_order() -> None:
    leaves, structure = jax.tree.flatten(Counters(steps=1, info={"b": 3, "a": 2}))
    assert leaves == [1, 2, 3]
    assert jax.tree.unflatten(structure, leaves) == Counters(steps=1, info={"a": 2, "b": 3})


def test_tree_flatten_returns_values_and_names() -> None:
    assert Counters(steps=4).tree_flatten() == ((4, {}), ("steps", "info"))


def test_replace_changes_a_copy() -> None:
    before = Counters(steps=1)
    assert before.replace(steps=2).steps == 2
    assert before.steps == 1
    with pytest.raises(TypeError, match="missing_field"):
        before.replace(missing_field=1)


def test_unflattening_runs_no_init() -> None:
    class Placeholder:
        """Something that a checked ``__init__`` would refuse."""

    leaf = Placeholder()
    output = jax.tree.map(
        lambda _: leaf, StatefulModuleOutput((), 1.0, 0.0, {}), is_leaf=lambda x: x == 0.0
    )
    assert output.regularization_loss is leaf


def test_instances_pass_through_jit() -> None:
    doubled = jax.jit(lambda counters: jax.tree.map(lambda x: 2 * x, counters))(
        Counters(steps=3, info={"n": jp.asarray(5)})
    )
    assert isinstance(doubled, Counters)
    assert int(doubled.steps) == 6
    assert int(doubled.info["n"]) == 10


def test_tree_paths_of_network_outputs_use_field_names() -> None:
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_flatten_with_path(PPONetworkOutput(1, 2, 3))[0]
    ]
    assert paths == [".actions", ".loglikelihoods", ".value_estimates"]
