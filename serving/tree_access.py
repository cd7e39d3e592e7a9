"""Reading and building trees of one structure in every step, without looking at the structure anew.

What is here does for usual trees what `tree.flatten` and `tree.unflatten` do for all, in a fraction
of the time. Whatever is not as usual is left to those, which also say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from serving import tree
from serving.tree import MISSING, Dict, Leaf, List, NamedTuple, Node, Nothing, Tuple

Reader = Callable[[Any, list[Any]], bool]


def reader(node: Node) -> Reader:
    """Returns a function that appends a tree's leaves to a list, in the order of `tree.leaves`.

    The function returns False, with the list in any state, for a tree that is not just so: built of
    dicts, lists and tuples themselves, and of dataclasses with attributes, with nothing missing and
    nothing surplus. `tree.flatten` may still take it.
    """
    if isinstance(node, Leaf):
        return _read_leaf
    if isinstance(node, Nothing):
        return lambda value, out: value is None
    children = [reader(child) for child in node.children]
    if isinstance(node, Dict):
        return _dict_reader(list(zip(node.keys, children, strict=True)))
    if isinstance(node, List | Tuple):
        return _sequence_reader(list if isinstance(node, List) else tuple, children)
    if isinstance(node, NamedTuple):
        # Of many kinds, all of which `flatten` knows.
        return lambda value, out: False
    return _attribute_reader(list(zip(node.fields, children, strict=True)))


def _read_leaf(value: Any, out: list[Any]) -> bool:
    out.append(value)
    return True


def _dict_reader(children: list[tuple[Any, Reader]]) -> Reader:
    def read(value: Any, out: list[Any]) -> bool:
        if type(value) is not dict or len(value) != len(children):
            return False
        for key, child in children:
            item = value.get(key, MISSING)
            if item is MISSING or not child(item, out):
                return False
        return True

    return read


def _sequence_reader(kind: type, children: list[Reader]) -> Reader:
    def read(value: Any, out: list[Any]) -> bool:
        if type(value) is not kind or len(value) != len(children):
            return False
        return all(child(item, out) for item, child in zip(value, children, strict=True))

    return read


def _attribute_reader(children: list[tuple[str, Reader]]) -> Reader:
    def read(value: Any, out: list[Any]) -> bool:
        if isinstance(value, dict):
            return False
        for name, child in children:
            item = getattr(value, name, MISSING)
            if item is MISSING or not child(item, out):
                return False
        return True

    return read


def copier(node: Node, arrays: list[np.ndarray]) -> Callable[[], Any]:
    """Returns a function that copies arrays, whatever they hold then, into the tree of `node`."""
    if isinstance(node, Leaf):
        return arrays[0].copy
    if isinstance(node, Dict) and all(isinstance(child, Leaf) for child in node.children):
        pairs = list(zip(node.keys, arrays, strict=True))
        return lambda: {key: array.copy() for key, array in pairs}
    return lambda: tree.unflatten(node, [array.copy() for array in arrays])
