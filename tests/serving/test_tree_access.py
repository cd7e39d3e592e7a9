"""The quick ways to read and build trees give what the thorough ones give, or leave it to them."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest

from serving import tree
from serving.observation import ObservationWriter
from serving.tree import Dataclass, Dict, Leaf, List, NamedTuple, Nothing, Tuple
from serving.tree_access import copier, reader


def leaf(port="x", shape=(2,), dtype="float32"):
    return Leaf(port=port, shape=list(shape), dtype=dtype)


@dataclasses.dataclass
class Reading:
    rate: Any
    angle: Any


Pair = collections.namedtuple("Pair", "one two")
NODES: dict[str, tuple[Any, Any]] = {
    "leaf": (leaf(), 1),
    "dict": (Dict(keys=["a", "b"], children=[leaf(), leaf()]), {"b": 2, "a": 1}),
    "list": (List(children=[leaf(), leaf()]), [1, 2]),
    "tuple": (Tuple(children=[leaf(), Nothing(), leaf()]), (1, None, 2)),
    "dataclass": (
        Dataclass(
            name="Reading",
            class_path="robot:Reading",
            fields=["rate", "angle"],
            children=[leaf(), leaf()],
        ),
        Reading(1, 2),
    ),
    "nested": (
        Dict(keys=["deep", "flat"], children=[List(children=[Tuple(children=[leaf()])]), leaf()]),
        {"deep": [(1,)], "flat": 2},
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_the_leaves_are_those_that_flatten_finds(name):
    node, value = NODES[name]
    out: list[Any] = []
    assert reader(node)(value, out)
    assert out == tree.flatten(node, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dict", {"a": 1}),
        ("dict", {"a": 1, "b": 2, "c": 3}),
        ("dict", {"a": 1, "c": 2}),
        ("dict", collections.OrderedDict(a=1, b=2)),
        ("dict", [1, 2]),
        ("list", [1]),
        ("list", (1, 2)),
        ("list", [1, 2, 3]),
        ("tuple", (1, 2, 3)),
        ("tuple", [1, None, 2]),
        ("dataclass", {"rate": 1, "angle": 2}),
        ("dataclass", Pair(1, 2)),
        ("nested", {"deep": [1], "flat": 2}),
        ("nested", None),
    ],
)
def test_whatever_is_not_just_so_is_left_to_flatten(name, value):
    assert not reader(NODES[name][0])(value, [])


def test_named_tuples_are_left_to_flatten():
    node = NamedTuple(
        name="Pair", class_path="robot:Pair", fields=["one", "two"], children=[leaf(), leaf()]
    )
    assert not reader(node)(Pair(1, 2), [])


@pytest.mark.parametrize("name", NODES)
def test_what_is_built_holds_copies(name):
    node, _ = NODES[name]
    arrays = [np.full(2, index, np.float32) for index, _ in enumerate(tree.leaves(node))]
    copied = copier(node, arrays)
    for value in (1.0, 2.0):
        for array in arrays:
            array += value
        built = copied()
        expected = tree.unflatten(node, [array.copy() for array in arrays])
        assert type(built) is type(expected)
        for one, other, own in zip(
            tree.flatten(node, built), tree.flatten(node, expected), arrays, strict=True
        ):
            assert np.array_equal(one, other) and not np.shares_memory(one, own)


class OneLeaf:
    """As much of a manifest as a writer needs."""

    def __init__(self, dtype):
        self.observation = leaf("obs", (3, 2), dtype)
        self.observation_ports = [self.observation_port(dtype)]

    @staticmethod
    def observation_port(dtype):
        from serving.manifest import Port

        return Port(name="obs", path=[], shape=[3, 2], dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_finite_is_found_and_the_largest_are_taken(types_unchecked, dtype):
    target = np.zeros((3, 2), dtype)
    manifest: Any = OneLeaf(dtype)
    writer = ObservationWriter(manifest, [target], None, check_finite=True)
    largest = np.full((3, 2), np.finfo(dtype).max, dtype)
    largest[1] = -largest[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (largest, largest[::-1], np.asfortranarray(largest), np.zeros((3, 2), dtype)):
            writer.write(value)
            assert np.array_equal(target, value)
        for place in np.ndindex(3, 2):
            for bad in (np.nan, np.inf, -np.inf):
                value = largest.copy()
                value[place] = bad
                with pytest.raises(Exception, match=rf"at index \[{place[0]}, {place[1]}\]"):
                    writer.write(value)
        unchecked = ObservationWriter(manifest, [target], None, check_finite=False)
        unchecked.write(np.full((3, 2), np.nan, dtype))
        assert np.isnan(target).all()
