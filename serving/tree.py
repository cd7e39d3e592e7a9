"""The structure of a pytree, kept as data so that no JAX and no user class is needed to rebuild it.

A node says which container stands where and a `Leaf` which port carries the value. Children of a
dict are in sorted key order, as JAX has them, so the leaves of a node come in the order in which
JAX flattens the same tree.

Limits, checked by `check_node` on every read: at most `MAX_DEPTH` nested containers, `MAX_LEAVES`
leaves, `MAX_RANK` axes per leaf; keys sorted, unique and of one type; field names that are plain
identifiers.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from serving.errors import TreeError

MAX_DEPTH = 32
MAX_LEAVES = 4096
MAX_RANK = 16
MAX_AXIS = 2**31 - 1
MAX_NAME = 256


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="node"):
    """Base of all nodes; the field `node` in JSON tells which one it is."""


class Leaf(_Node, frozen=True, tag="leaf"):
    """One array. `shape` has no batch axis; `port` is None where the policy does not use it."""

    port: str | None
    shape: list[int]
    dtype: str


class Nothing(_Node, frozen=True, tag="none"):
    """Python's None, which holds no leaves."""


class Dict(_Node, frozen=True, tag="dict"):
    """A mapping; `keys` in sorted order, one child for each."""

    keys: list[str | int]
    children: list[Node]


class List(_Node, frozen=True, tag="list"):
    """A list."""

    children: list[Node]


class Tuple(_Node, frozen=True, tag="tuple"):
    """A plain tuple."""

    children: list[Node]


class NamedTuple(_Node, frozen=True, tag="namedtuple"):
    """A named tuple. `class_path` is information for people and is never imported."""

    name: str
    class_path: str
    fields: list[str]
    children: list[Node]


class Dataclass(_Node, frozen=True, tag="dataclass"):
    """A dataclass with the fields that hold data. `class_path` is never imported."""

    name: str
    class_path: str
    fields: list[str]
    children: list[Node]


Node = Leaf | Nothing | Dict | List | Tuple | NamedTuple | Dataclass


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""Stands for a leaf without a port that the given tree does not have."""


def leaves(node: Node) -> list[Leaf]:
    """Returns the leaves of `node` in flattening order."""
    if isinstance(node, Leaf):
        return [node]
    return [leaf for child in _children(node) for leaf in leaves(child)]


def leaf_paths(node: Node, root: str) -> list[str]:
    """Returns the dotted path of each leaf, in flattening order.

    >>> leaf_paths(Dict(["arm", "hand"], [Leaf(None, [3], "float32"), Nothing()]), "obs")
    ['obs.arm']
    """
    if isinstance(node, Leaf):
        return [root]
    paths: list[str] = []
    for name, child in zip(_child_names(node), _children(node), strict=True):
        paths.extend(leaf_paths(child, f"{root}.{name}"))
    return paths


def check_node(node: Node, where: str) -> None:
    """Checks what the types alone do not say, with the limits at the top of this file.

    Args:
        node: the structure to check, from an untrusted file.
        where: what the node describes, for the message.

    Raises:
        TreeError: naming the path of the offending node.
    """
    _check(node, where, 0)
    count = len(leaves(node))
    if count > MAX_LEAVES:
        raise TreeError(f"{where}: {count} leaves, at most {MAX_LEAVES} are allowed")


def flatten(
    node: Node,
    tree: Any,
    *,
    root: str = "obs",
    error: Callable[[str], Exception] = TreeError,
    optional_without_port: bool = False,
) -> list[Any]:
    """Takes the leaves of `tree` in the order of `leaves(node)`.

    Mappings are accepted for dicts, dataclasses and named tuples, sequences for lists, tuples and
    named tuples, any object with the right attributes for dataclasses: a robot has the values but
    not the classes of the training code.

    Args:
        node: the structure `tree` must have.
        tree: the values.
        root: name of the tree's root in messages.
        error: makes the exception to raise from a message.
        optional_without_port: leaves without a port may be absent; `MISSING` stands for them.

    Returns:
        One value for each leaf of `node`, unchanged.

    Raises:
        TreeError: (or what `error` makes) on a missing or surplus key, a wrong length or a wrong
            kind of container, naming the path.
    """
    out: list[Any] = []
    _Flattener(out, error, optional_without_port).visit(node, tree, root)
    return out


def unflatten(node: Node, values: Iterable[Any]) -> Any:
    """Builds the tree that `node` describes from one value per leaf.

    Named tuples and dataclasses are made from their names alone; two trees of one structure share
    the made class.

    Raises:
        TreeError: if there are more or fewer values than leaves.
    """
    iterator = iter(values)
    try:
        tree = _build(node, iterator)
    except _Exhausted as error:
        raise TreeError(f"too few values: {len(leaves(node))} leaves are expected") from error
    if next(iterator, MISSING) is not MISSING:
        raise TreeError(f"too many values: {len(leaves(node))} leaves are expected")
    return tree


def _children(node: Node) -> list[Node]:
    return [] if isinstance(node, Leaf | Nothing) else node.children


def _child_names(node: Node) -> list[Any]:
    if isinstance(node, Dict):
        return list(node.keys)
    if isinstance(node, NamedTuple | Dataclass):
        return list(node.fields)
    return list(range(len(_children(node))))


def _check(node: Node, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TreeError(f"{where}: more than {MAX_DEPTH} nested containers")
    if isinstance(node, Leaf):
        _check_leaf(node, where)
        return
    if len(names := _child_names(node)) != len(children := _children(node)):
        raise TreeError(f"{where}: {len(names)} names for {len(children)} children")
    if isinstance(node, Dict):
        if len({type(key) for key in node.keys}) > 1:
            raise TreeError(f"{where}: keys of one dict must all be strings or all be integers")
        if any(a >= b for a, b in zip(node.keys, node.keys[1:], strict=False)):  # pyright: ignore
            raise TreeError(f"{where}: keys must be sorted and unique, got {node.keys[:20]}")
        if any(isinstance(key, str) and len(key) > MAX_NAME for key in node.keys):
            raise TreeError(f"{where}: a key is longer than {MAX_NAME} characters")
    if isinstance(node, NamedTuple | Dataclass):
        _check_class(node, where)
    for name, child in zip(names, children, strict=True):
        _check(child, f"{where}.{name}", depth + 1)


def _check_leaf(leaf: Leaf, where: str) -> None:
    if len(leaf.shape) > MAX_RANK:
        raise TreeError(f"{where}: {len(leaf.shape)} axes, at most {MAX_RANK} are allowed")
    if any(not 0 <= size <= MAX_AXIS for size in leaf.shape):
        raise TreeError(f"{where}: shape {leaf.shape} has an axis outside 0..{MAX_AXIS}")
    if len(leaf.dtype) > MAX_NAME or not leaf.dtype:
        raise TreeError(f"{where}: dtype {leaf.dtype[:40]!r} is not a name")


def _check_class(node: NamedTuple | Dataclass, where: str) -> None:
    if len(set(node.fields)) != len(node.fields):
        raise TreeError(f"{where}: field names must be unique, got {node.fields[:20]}")
    for name in [node.name, *node.fields]:
        # Classes are generated from these names, so nothing but a plain identifier may pass.
        if not name.isidentifier() or keyword.iskeyword(name) or len(name) > MAX_NAME:
            raise TreeError(f"{where}: {name[:40]!r} is not a name for a class or a field")
    if isinstance(node, NamedTuple) and any(name.startswith("_") for name in node.fields):
        raise TreeError(f"{where}: a named tuple has no fields that start with '_'")


class _Flattener:
    """Collects leaves into `out`; a class only to spare four arguments in each recursive call."""

    def __init__(self, out: list[Any], error: Callable[[str], Exception], optional: bool) -> None:
        self.out = out
        self.error = error
        self.optional = optional

    def visit(self, node: Node, tree: Any, path: str) -> None:
        if isinstance(node, Leaf):
            self.out.append(tree)
        elif isinstance(node, Nothing):
            if tree is not None:
                raise self.error(f"{path}: expected None, got {_kind(tree)}")
        elif isinstance(node, Dict):
            if not isinstance(tree, Mapping):
                raise self.error(
                    f"{path}: expected a dict with keys {node.keys}, got {_kind(tree)}"
                )
            self.mapping(node.keys, node.children, tree, path)
        elif isinstance(node, List | Tuple):
            kind = "list" if isinstance(node, List) else "tuple"
            self.sequence(node.children, tree, path, f"a {kind} of {len(node.children)}")
        elif isinstance(node, NamedTuple):
            expected = f"the named tuple {node.name} with fields {node.fields}"
            if isinstance(tree, Mapping):
                self.mapping(node.fields, node.children, tree, path)
            elif hasattr(tree, "_fields"):
                if list(tree._fields) != node.fields:
                    raise self.error(f"{path}: expected {expected}, got {list(tree._fields)}")
                self.sequence(node.children, tree, path, expected, node.fields)
            else:
                self.sequence(node.children, tree, path, expected, node.fields)
        elif isinstance(tree, Mapping):
            self.mapping(node.fields, node.children, tree, path)
        else:
            self.attributes(node, tree, path)

    def mapping(self, keys: list[Any], children: list[Node], tree: Any, path: str) -> None:
        missing = []
        found = 0
        for key, child in zip(keys, children, strict=True):
            if key in tree:
                found += 1
                self.visit(child, tree[key], f"{path}.{key}")
            elif not self.absent(child):
                missing.append(key)
        surplus = [key for key in tree if key not in keys] if len(tree) != found else []
        if missing or surplus:
            parts = [f"missing {path}.{key}" for key in missing]
            parts += [f"unexpected {path}.{key}" for key in surplus[:20]]
            raise self.error(f"{path}: {', '.join(parts)}; expected keys {keys}")

    def sequence(
        self,
        children: list[Node],
        tree: Any,
        path: str,
        expected: str,
        names: list[str] | None = None,
    ) -> None:
        if not isinstance(tree, list | tuple):
            raise self.error(f"{path}: expected {expected}, got {_kind(tree)}")
        if len(tree) != len(children):
            raise self.error(f"{path}: expected {expected}, got {len(tree)} elements")
        for name, child, value in zip(names or range(len(tree)), children, tree, strict=True):
            self.visit(child, value, f"{path}.{name}")

    def attributes(self, node: Dataclass, tree: Any, path: str) -> None:
        # Attributes beyond the fields are fine: a dataclass may have fields that hold no data.
        missing = []
        for name, child in zip(node.fields, node.children, strict=True):
            value = getattr(tree, name, MISSING)
            if value is not MISSING:
                self.visit(child, value, f"{path}.{name}")
            elif not self.absent(child):
                missing.append(name)
        if missing:
            raise self.error(
                f"{path}: expected the dataclass {node.name} with fields {node.fields}, "
                f"got {_kind(tree)} without {missing}"
            )

    def absent(self, node: Node) -> bool:
        """Notes every leaf of `node` as missing and returns True if it may be."""
        if isinstance(node, Nothing):
            return self.optional
        below = leaves(node)
        if not self.optional or not below or any(leaf.port is not None for leaf in below):
            return False
        self.out.extend([MISSING] * len(below))
        return True


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")


class _Exhausted(Exception):
    pass


def _build(node: Node, values: Iterator[Any]) -> Any:
    if isinstance(node, Leaf):
        value = next(values, _Exhausted)
        if value is _Exhausted:
            raise _Exhausted
        return value
    if isinstance(node, Nothing):
        return None
    children = [_build(child, values) for child in node.children]
    if isinstance(node, Dict):
        return dict(zip(node.keys, children, strict=True))
    if isinstance(node, List):
        return children
    if isinstance(node, Tuple):
        return tuple(children)
    fields = tuple(node.fields)
    if isinstance(node, NamedTuple):
        return _named_tuple_class(node.name, fields)(*children)
    return _dataclass_class(node.name, fields)(*children)


@functools.lru_cache(maxsize=256)
def _named_tuple_class(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


@functools.lru_cache(maxsize=256)
def _dataclass_class(name: str, fields: tuple[str, ...]) -> Any:
    return dataclasses.make_dataclass(name, fields)
