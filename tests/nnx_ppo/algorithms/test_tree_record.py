import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jp
import msgspec
import numpy as np
import pytest

from nnx_ppo.algorithms.checkpoint_format import tree_record
from nnx_ppo.algorithms.checkpoint_format.tree_record import (
    Node,
    StructureError,
    build_structure,
    opaque_parts,
    record_structure,
)
from nnx_ppo.algorithms.types import Transition
from nnx_ppo.networks.types import PPONetworkOutput


def _round_trip(tree):
    node = record_structure(tree)
    data = msgspec.json.encode(node)
    return build_structure(msgspec.json.decode(data, type=Node), jax.tree.leaves(tree))


def _transition():
    output = PPONetworkOutput({"left": 1.0, "right": 2.0}, (3.0, [4.0]), None)
    return Transition(5, output, 6, 7, 8, 9, {"env": {}, "net": {0: 10, 3: ()}})


@pytest.mark.parametrize(
    "tree",
    [
        1.0,
        None,
        (),
        {"b": 1, "a": [2, (3, None)]},
        {2: 1, 1: {}},
        _transition(),
        {"nested": _transition()},
    ],
)
def test_trees_come_back_with_structure_and_leaves(tree):
    built = _round_trip(tree)
    assert jax.tree.structure(built) == jax.tree.structure(tree)
    assert jax.tree.leaves(built) == jax.tree.leaves(tree)
    assert built == tree


def test_named_tuples_come_back():
    import optax

    state: Any = optax.adam(1e-3).init({"w": jp.ones(2)})
    built = _round_trip(state)
    assert type(built[0]) is type(state[0])
    np.testing.assert_array_equal(built[0].mu["w"], jp.zeros(2))


def test_static_fields_of_dataclasses_come_back():
    # A dataclass of Flax whose sizes are not part of the tree, at the top level of this module.
    tree = {"x": WithStatic(jp.ones(2), 3, "name")}
    import sys

    sys.modules["test_tree_record_module"] = sys.modules[__name__]
    original, WithStatic.__module__ = WithStatic.__module__, "test_tree_record_module"
    try:
        built = _round_trip(tree)
    finally:
        WithStatic.__module__ = original
    assert isinstance(built["x"], WithStatic)
    assert (built["x"].size, built["x"].name) == (3, "name")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WithStatic:
    array: Any
    size: int = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})


def test_a_local_class_is_opaque_and_says_where_it_is():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Local:
        x: Any

    node = record_structure({"outer": [1, Local(2)]})
    (part,) = opaque_parts(node)
    assert part.where == "['outer'][1]"
    with pytest.raises(StructureError, match="Local at .'outer'..1. could not be recorded"):
        build_structure(node, [1, 2])


def test_other_containers_are_opaque():
    tree = {"a": collections.OrderedDict(x=1)}
    assert len(list(opaque_parts(record_structure(tree)))) == 1


@pytest.mark.parametrize(
    "node, message",
    [
        (tree_record.Dataclass("nnx_ppo.algorithms.config:EvalConfig", [], [], {}), "has changed"),
        (tree_record.Dataclass("no_such_module:X", [], [], {}), "cannot be imported"),
        (tree_record.Dataclass("os:getcwd", [], [], {}), "no such class"),
        (tree_record.NamedTuple("builtins:tuple", [], []), "has changed"),
        (tree_record.Leaf(7), "leaf 7 of 1"),
    ],
)
def test_records_that_do_not_fit_are_refused(node, message):
    with pytest.raises(StructureError, match=message):
        build_structure(node, [0])


def test_a_class_that_is_no_pytree_is_refused():
    fields = ["enabled", "every_steps", "n_envs", "max_episode_length"]
    more = ["logging_level", "logging_percentiles"]
    node = tree_record.Dataclass(
        "nnx_ppo.algorithms.config:EvalConfig",
        fields + more,
        [tree_record.Leaf(0)] * 6,
        {},
    )
    with pytest.raises(StructureError, match="not registered as a pytree"):
        build_structure(node, [0])
