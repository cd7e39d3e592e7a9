import collections
import dataclasses

import msgspec
import numpy as np
import pytest

from serving import TreeError, tree
from serving.tree import Dataclass, Dict, Leaf, List, NamedTuple, Nothing, Tuple

Pose = collections.namedtuple("Pose", ["x", "y"])


@dataclasses.dataclass
class Reading:
    imu: object
    name: str = "label that holds no data"


def number(port: str | None = "p") -> Leaf:
    return Leaf(port, [], "float32")


EVERY_KIND = Dict(
    ["a", "b", "c", "d", "e", "f"],
    [
        List([number("1"), number("2")]),
        Tuple([number("3"), Nothing()]),
        NamedTuple("Pose", "robot:Pose", ["x", "y"], [number("4"), number("5")]),
        Dataclass("Reading", "robot:Reading", ["imu"], [number("6")]),
        Dict([2, 10], [number("7"), number("8")]),
        number("9"),
    ],
)
VALUES = {
    "a": [1, 2],
    "b": (3, None),
    "c": Pose(4, 5),
    "d": Reading(6),
    "e": {10: 8, 2: 7},
    "f": 9,
}


def test_leaves_come_in_sorted_key_order_whatever_order_the_dict_has():
    shuffled = dict(reversed(VALUES.items()))
    assert tree.flatten(EVERY_KIND, shuffled) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_leaves_come_in_the_order_in_which_jax_flattens():
    import jax

    node = Dict(["a", "b"], [Tuple([number(), Nothing(), number()]), Dict([3, 7], [number()] * 2)])
    values = {"b": {7: 4, 3: 3}, "a": (1, None, 2)}
    assert tree.flatten(node, values) == jax.tree.leaves(values)


def test_a_flattened_tree_is_rebuilt_with_classes_made_from_names():
    rebuilt = tree.unflatten(EVERY_KIND, range(1, 10))
    assert list(rebuilt) == ["a", "b", "c", "d", "e", "f"]
    assert rebuilt["a"] == [1, 2] and rebuilt["b"] == (3, None) and rebuilt["e"] == {2: 7, 10: 8}
    assert rebuilt["c"]._fields == ("x", "y") and rebuilt["c"] == (4, 5)
    assert dataclasses.asdict(rebuilt["d"]) == {"imu": 6}
    assert type(rebuilt["d"]) is type(tree.unflatten(EVERY_KIND, range(9))["d"])
    assert tree.flatten(EVERY_KIND, rebuilt) == list(range(1, 10))


def test_structure_survives_json():
    data = msgspec.json.encode(EVERY_KIND)
    assert msgspec.json.decode(data, type=tree.Node) == EVERY_KIND


def test_plain_containers_stand_in_for_classes_the_robot_does_not_have():
    assert tree.flatten(EVERY_KIND.children[2], {"y": 5, "x": 4}) == [4, 5]
    assert tree.flatten(EVERY_KIND.children[2], [4, 5]) == [4, 5]
    assert tree.flatten(EVERY_KIND.children[3], {"imu": 6}) == [6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": [1]}, "obs.a: expected a list of 2, got 1 elements"),
        ({"a": 5}, "obs.a: expected a list of 2, got int"),
        ({"b": (1, 2)}, "obs.b.1: expected None, got int"),
        ({"c": collections.namedtuple("Other", ["u", "v"])(1, 2)}, "obs.c: .*Pose.*'u', 'v'"),
        ({"d": 3}, r"obs.d: expected the dataclass Reading .*got int without \['imu'\]"),
        ({"e": {2: 1}}, "obs.e: missing obs.e.10"),
        ({"e": {2: 1, 10: 2, 3: 4}}, "obs.e: unexpected obs.e.3"),
        ({"e": np.zeros(2)}, r"obs.e: expected a dict .*got ndarray of shape \(2,\)"),
        ({"g": 1}, "obs: unexpected obs.g"),
    ],
)
def test_a_tree_of_another_structure_is_refused_naming_the_path(change, message):
    with pytest.raises(TreeError, match=message):
        tree.flatten(EVERY_KIND, {**VALUES, **change})


def test_missing_and_surplus_keys_are_named_together():
    with pytest.raises(
        TreeError, match=r"missing obs.x, unexpected obs.z; expected keys \['x', 'y'\]"
    ):
        tree.flatten(Dict(["x", "y"], [number(), number()]), {"y": 1, "z": 2})


def test_leaves_without_a_port_may_be_missing_only_when_asked_for():
    node = Dict(["critic", "x"], [Dict(["u", "v"], [number(None)] * 2), number()])
    assert tree.flatten(node, {"x": 3}, optional_without_port=True) == [tree.MISSING] * 2 + [3]
    assert tree.flatten(node, {"x": 3, "critic": {"u": 1, "v": 2}}) == [1, 2, 3]
    with pytest.raises(TreeError, match="missing obs.critic"):
        tree.flatten(node, {"x": 3})
    with pytest.raises(TreeError, match="unexpected obs.y"):
        tree.flatten(node, {"x": 3, "y": 1}, optional_without_port=True)


@pytest.mark.parametrize(("count", "word"), [(8, "few"), (10, "many")])
def test_another_number_of_values_than_leaves_is_refused(count, word):
    with pytest.raises(TreeError, match=f"too {word} values: 9 leaves"):
        tree.unflatten(EVERY_KIND, range(count))


def nested(depth: int) -> tree.Node:
    node: tree.Node = number()
    for _ in range(depth):
        node = List([node])
    return node


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (nested(tree.MAX_DEPTH + 1), "nested containers"),
        (List([number()] * (tree.MAX_LEAVES + 1)), "4097 leaves"),
        (Leaf(None, [1] * (tree.MAX_RANK + 1), "float32"), "17 axes"),
        (Leaf(None, [-1], "float32"), "axis outside"),
        (Leaf(None, [2**31], "float32"), "axis outside"),
        (Leaf(None, [1], ""), "not a name"),
        (Dict(["b", "a"], [number(), number()]), "sorted and unique"),
        (Dict(["a", "a"], [number(), number()]), "sorted and unique"),
        (Dict(["a", 1], [number(), number()]), "all be strings"),
        (Dict(["a"], []), "1 names for 0 children"),
        (Dict(["k" * 257], [number()]), "longer than 256"),
        (NamedTuple("Pose", "", ["x", "x"], [number(), number()]), "unique"),
        (NamedTuple("Pose", "", ["_x"], [number()]), "start with '_'"),
        (NamedTuple("Pose", "", ["import"], [number()]), "'import' is not a name"),
        (
            Dataclass("P(object): pass\nimport os", "", ["x"], [number()]),
            "is not a name for a class",
        ),
        (Dataclass("P", "", ["x=print(1)"], [number()]), "is not a name for a class or a field"),
    ],
)
def test_a_structure_beyond_the_limits_is_refused(node, message):
    with pytest.raises(TreeError, match=message):
        tree.check_node(node, "observation")
    assert tree.check_node(nested(tree.MAX_DEPTH), "observation") is None


def test_paths_of_leaves_are_dotted():
    assert tree.leaf_paths(EVERY_KIND, "obs") == [
        *["obs.a.0", "obs.a.1", "obs.b.0", "obs.c.x", "obs.c.y", "obs.d.imu"],
        *["obs.e.2", "obs.e.10", "obs.f"],
    ]
