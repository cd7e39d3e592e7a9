"""Tests of Flattener, Filter, Scale, Merge and Map."""

import types
from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from jax import export

from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Filter, Flattener, Map, Merge, Scale

Arm = namedtuple("Arm", ["touch", "angle"])


class Head(StatefulModule):
    """Returns a dict with its own key, and counts steps in an integer carry."""

    def __init__(self, key: str):
        self.key = key

    def __call__(
        self, module_state: Any, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        return StatefulModuleOutput(module_state + 1, {self.key: obs * 2.0}, 0.0, {})

    def initialize_state(self, batch_size: int) -> jax.Array:
        return jp.zeros((batch_size,), jp.int32)


def nested() -> dict[str, Any]:
    return {
        "b": jp.arange(6.0).reshape(2, 3),
        "a": {"q": jp.arange(8.0).reshape(2, 2, 2), "p": jp.asarray([[10.0], [20.0]])},
    }


def test_flattener_joins_leaves_in_tree_order() -> None:
    output = Flattener()((), nested()).output
    np.testing.assert_array_equal(
        output,
        [
            [10.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0],
            [20.0, 4.0, 5.0, 6.0, 7.0, 3.0, 4.0, 5.0],
        ],
    )


def test_flattener_keeps_the_levels_asked_for() -> None:
    output = Flattener(preserve_levels=1)((), nested()).output
    assert list(output) == ["b", "a"]
    np.testing.assert_array_equal(output["b"], nested()["b"])
    np.testing.assert_array_equal(output["a"][1], [20.0, 4.0, 5.0, 6.0, 7.0])
    deeper = Flattener(preserve_levels=2)((), {"a": {"p": jp.zeros((2, 3, 4))}}).output
    assert deeper["a"]["p"].shape == (2, 12)


def test_flattener_leaves_flat_values_as_they_are() -> None:
    flat = {"a": jp.asarray([[1.0, -0.0]]), "b": jp.asarray([[jp.pi]])}
    again = Flattener(preserve_levels=1)((), flat).output
    for name, value in flat.items():
        np.testing.assert_array_equal(again[name], value)
    np.testing.assert_array_equal(Flattener()((), flat["a"]).output, flat["a"])


def test_flattener_handles_named_tuples_lists_and_other_mappings() -> None:
    arm = Arm(touch=jp.zeros((2, 1)), angle=jp.ones((2, 2, 2)))
    kept = Flattener(preserve_levels=1)((), arm).output
    assert isinstance(kept, Arm)
    assert kept.angle.shape == (2, 4)
    np.testing.assert_array_equal(Flattener()((), arm).output, [[0.0, 1.0, 1.0, 1.0, 1.0]] * 2)
    as_list = Flattener(preserve_levels=1)((), [jp.zeros((2, 1)), (jp.zeros((2, 2)),)]).output
    assert [leaf.shape for leaf in as_list] == [(2, 1), (2, 2)]
    proxy = types.MappingProxyType({"x": types.MappingProxyType({"y": jp.zeros((2, 3))})})
    assert Flattener()((), proxy).output.shape == (2, 3)
    assert Flattener(1)((), proxy).output["x"].shape == (2, 3)


def test_flattener_joins_flags_and_counts_with_floats() -> None:
    obs = {"flag": jp.asarray([True, False]), "x": jp.asarray([[0.5], [1.5]])}
    output = Flattener()((), obs).output
    assert output.dtype == jp.float32
    np.testing.assert_array_equal(output, [[1.0, 0.5], [0.0, 1.5]])


def test_flattener_errors() -> None:
    with pytest.raises(ValueError, match="-1"):
        Flattener(preserve_levels=-1)
    with pytest.raises(TypeError, match=r"input\['a'\] with 1 levels"):
        Flattener(preserve_levels=2)((), {"a": jp.zeros((2, 3))})


def test_flattener_traces_with_a_symbolic_batch() -> None:
    (batch,) = export.symbolic_shape("b")
    types_ = {
        "a": jax.ShapeDtypeStruct((batch, 2, 3), jp.float32),
        "b": jax.ShapeDtypeStruct((batch,), jp.float32),
    }
    exported = export.export(jax.jit(lambda x: Flattener()((), x).output))(types_)
    assert str(exported.out_avals[0].shape) == "(b, 7)"


def test_filter_extracts_by_key_path_and_function() -> None:
    spec = {
        "z": "goal",
        "angle": ("arm", "joints", 1),
        "sum": lambda obs: obs["goal"] + 1.0,
    }
    obs = {"goal": jp.ones((2, 1)), "arm": {"joints": [jp.zeros(2), jp.full((2,), 4.0)]}, "rest": 0}
    output = Filter(spec)((), obs).output
    assert list(output) == ["z", "angle", "sum"]
    np.testing.assert_array_equal(output["z"], [[1.0], [1.0]])
    np.testing.assert_array_equal(output["angle"], [4.0, 4.0])
    np.testing.assert_array_equal(output["sum"], [[2.0], [2.0]])


def test_filter_refuses_other_specs() -> None:
    for spec in ([("a", "b")], "a", None):
        with pytest.raises(TypeError, match="expected a dict"):
            Filter(spec)
    for entry in (3, ["a"], None):
        with pytest.raises(TypeError, match="entry 'x'"):
            Filter({"x": entry})


def test_filter_names_the_path_that_is_missing() -> None:
    with pytest.raises(KeyError, match=r"\['arm', 'angle'\].*'out'.*\['touch'\]"):
        Filter({"out": ("arm", "angle")})((), {"arm": {"touch": 1}})


def test_filter_survives_jit() -> None:
    net = Filter({"b": "x", "a": ("y", "z")})
    obs = {"x": jp.ones((1, 1)), "y": {"z": jp.zeros((1, 2))}}
    output = nnx.jit(lambda n, x: n((), x).output)(net, obs)
    assert {k: v.shape for k, v in output.items()} == {"a": (1, 2), "b": (1, 1)}


def test_scale_multiplies_every_leaf() -> None:
    scale = Scale(3)
    result = scale(("carry",), {"a": jp.ones((1, 2)), "b": [jp.full((1,), -2.0)]})
    np.testing.assert_array_equal(result.output["a"], [[3.0, 3.0]])
    np.testing.assert_array_equal(result.output["b"][0], [-6.0])
    assert scale.factor == 3.0 and isinstance(scale.factor, float)
    assert result.next_state == ("carry",)


def test_merge_unites_outputs_and_keeps_carries_apart() -> None:
    net = Merge(left=Head("l"), right=Head("r"))
    result = net(net.initialize_state(2), jp.ones((2, 1)))
    assert list(result.output) == ["l", "r"]
    np.testing.assert_array_equal(result.output["r"], [[2.0], [2.0]])
    np.testing.assert_array_equal(result.next_state["left"], [1, 1])
    assert result.next_state["right"].dtype == jp.int32
    assert result.rollout_extras == {"left": None, "right": None}


def test_merge_refuses_equal_keys_and_other_outputs() -> None:
    net = Merge({"one": Head("x"), "two": Head("x")})
    with pytest.raises(ValueError, match="'one' and 'two' both return the key 'x'"):
        net(net.initialize_state(1), jp.ones((1, 1)))
    arrays = Merge(scale=Scale(1.0))
    with pytest.raises(TypeError, match="'scale' must be a dict"):
        arrays(arrays.initialize_state(1), jp.ones((1, 1)))


def test_map_dispatches_by_key() -> None:
    net = Map({"z": Scale(2.0), "a": Scale(3.0)})
    obs = {"a": jp.ones((1, 1)), "surplus": jp.ones((1, 1)), "z": jp.ones((1, 1))}
    result = net(net.initialize_state(1), obs)
    assert list(result.output) == ["z", "a"]
    assert {name: float(value[0, 0]) for name, value in result.output.items()} == {
        "z": 2.0,
        "a": 3.0,
    }
    with pytest.raises(KeyError, match="'z'"):
        net(net.initialize_state(1), {"a": jp.ones((1, 1))})


@pytest.mark.parametrize("container", [Map, Merge])
def test_map_and_merge_refuse_ambiguous_or_empty_construction(container: Any) -> None:
    with pytest.raises(ValueError, match="not both"):
        container({"a": Scale(1.0)}, b=Scale(1.0))
    with pytest.raises(ValueError, match="at least one"):
        container()
