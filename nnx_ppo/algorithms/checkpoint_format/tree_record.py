"""The structure and leaves of a pytree as data that can be written to JSON and built again.

Dicts, lists, tuples, None, named tuples and dataclasses registered with JAX are recorded; other
containers are noted as opaque, and reading them back needs a template. A record of a named tuple
or dataclass holds the class's import path. Building it imports the class, checks that it is what
was recorded, and fills the fields without calling its ``__init__``.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Union

import jax
import msgspec

from nnx_ppo.algorithms.checkpoint_format.import_path import import_path_of, resolve_import_path
from nnx_ppo.algorithms.checkpoint_format.json_values import (
    NotRecordable,
    from_json_value,
    to_json_value,
)


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="node"):
    """Base of all nodes; the field ``node`` in JSON tells which one it is."""


class Leaf(_Node, frozen=True, tag="leaf"):
    """A leaf; ``index`` counts in the order in which JAX flattens the tree."""

    index: int


class Nothing(_Node, frozen=True, tag="none"):
    """None, which holds no leaves."""


class Dict(_Node, frozen=True, tag="dict"):
    """A dict with string or integer keys, in its own order."""

    keys: list[str | int]
    children: list["Node"]


class List(_Node, frozen=True, tag="list"):
    """A list."""

    children: list["Node"]


class Tuple(_Node, frozen=True, tag="tuple"):
    """A plain tuple."""

    children: list["Node"]


class NamedTuple(_Node, frozen=True, tag="namedtuple"):
    """A named tuple."""

    class_path: str
    fields: list[str]
    children: list["Node"]


class Dataclass(_Node, frozen=True, tag="dataclass"):
    """A dataclass registered with JAX; ``static`` holds the fields outside the tree."""

    class_path: str
    fields: list[str]
    children: list["Node"]
    static: dict[str, Any]


class Opaque(_Node, frozen=True, tag="opaque"):
    """A container that cannot be recorded."""

    class_name: str
    where: str


Node = Union[Leaf, Nothing, Dict, List, Tuple, NamedTuple, Dataclass, Opaque]  # noqa: UP007


class StructureError(Exception):
    """A recorded structure cannot be built; the message says what is in the way."""


class _Marker:
    """Stands for a leaf while a structure is recorded or compared."""

    def __init__(self, index: int):
        self.index = index


def record_structure(tree: Any) -> Node:
    """Records the containers of a tree."""
    leaves, treedef = jax.tree.flatten(tree)
    marked = jax.tree.unflatten(treedef, [_Marker(index) for index in range(len(leaves))])
    return _record(marked, "")


def build_structure(node: Node, leaves: list[Any]) -> Any:
    """Builds a tree from a recorded structure.

    Args:
        node: The structure.
        leaves: Its leaves, in the order in which JAX flattens it.

    Raises:
        StructureError: a part was not recordable, or a class is not what it was.
    """

    def children(nodes: list[Node]) -> list[Any]:
        return [build_structure(child, leaves) for child in nodes]

    match node:
        case Leaf():
            if not 0 <= node.index < len(leaves):
                raise StructureError(f"leaf {node.index} of {len(leaves)} is asked for")
            return leaves[node.index]
        case Nothing():
            return None
        case Dict():
            return dict(zip(node.keys, children(node.children), strict=True))
        case List():
            return children(node.children)
        case Tuple():
            return tuple(children(node.children))
        case NamedTuple():
            cls = _resolve_class(node.class_path, node.fields, _named_tuple_fields)
            return cls._make(children(node.children))
        case Dataclass():
            return _build_dataclass(node, children(node.children))
        case Opaque():
            where = f" at {node.where}" if node.where else ""
            raise StructureError(f"the class {node.class_name}{where} could not be recorded")


def opaque_parts(node: Node) -> Iterator[Opaque]:
    """Yields the parts of a structure that were not recordable."""
    if isinstance(node, Opaque):
        yield node
    for child in getattr(node, "children", ()):
        yield from opaque_parts(child)


def _record(tree: Any, where: str) -> Node:
    if tree is None:
        return Nothing()
    if isinstance(tree, _Marker):
        return Leaf(tree.index)
    kind = type(tree)
    if kind is list:
        return List([_record(child, f"{where}[{i}]") for i, child in enumerate(tree)])
    if kind is tuple:
        return Tuple([_record(child, f"{where}[{i}]") for i, child in enumerate(tree)])
    if kind is dict and all(type(key) in (str, int) for key in tree):
        children = [_record(child, f"{where}[{key!r}]") for key, child in tree.items()]
        return Dict(list(tree), children)
    node = _record_class(tree, where)
    if node is None or not _builds_same(node, tree):
        return Opaque(f"{kind.__module__}.{kind.__qualname__}", where)
    return node


def _record_class(tree: Any, where: str) -> Node | None:
    path = import_path_of(type(tree))
    if path is None:
        return None
    fields = _named_tuple_fields(type(tree))
    if fields is not None:
        children = [_record(child, f"{where}.{f}") for f, child in zip(fields, tree, strict=True)]
        return NamedTuple(path, fields, children)
    fields = _dataclass_fields(type(tree))
    if fields is None:
        return None
    parts = jax.tree.leaves(tree, is_leaf=lambda part: part is not tree)
    names, children, static = [], [], {}
    for name in fields:
        value = getattr(tree, name)
        if any(part is value for part in parts):
            names.append(name)
            children.append(_record(value, f"{where}.{name}"))
        else:
            try:
                static[name] = to_json_value(value, name)
            except NotRecordable:
                return None
    return Dataclass(path, names, children, static)


def _builds_same(node: Node, tree: Any) -> bool:
    """Whether a record gives back the tree, part for part."""
    if any(opaque_parts(node)):
        return True  # cannot be told, and is not built without a template anyway
    markers = {marker.index: marker for marker in jax.tree.leaves(tree)}
    leaves = [markers.get(index) for index in range(max(markers, default=-1) + 1)]
    try:
        built = build_structure(node, leaves)
    except StructureError:
        return False
    same = jax.tree.structure(built) == jax.tree.structure(tree)
    return same and all(map(_is, jax.tree.leaves(built), jax.tree.leaves(tree)))


def _is(first: Any, second: Any) -> bool:
    return first is second


def _build_dataclass(node: Dataclass, children: list[Any]) -> Any:
    cls = _resolve_class(node.class_path, [*node.fields, *node.static], _dataclass_fields)
    instance = object.__new__(cls)
    try:
        static = {name: from_json_value(value) for name, value in node.static.items()}
    except (ImportError, AttributeError, ValueError) as error:
        raise StructureError(f"a field of {node.class_path} cannot be read: {error}") from error
    for name, value in (*zip(node.fields, children, strict=True), *static.items()):
        object.__setattr__(instance, name, value)
    if jax.tree_util.all_leaves([instance]):
        raise StructureError(f"{node.class_path} is not registered as a pytree any more")
    return instance


def _resolve_class(
    path: str, fields: list[str], fields_of: Callable[[type], list[str] | None]
) -> Any:
    try:
        cls = resolve_import_path(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise StructureError(f"the class {path} cannot be imported: {error}") from error
    found = fields_of(cls) if isinstance(cls, type) else None
    if found is None or sorted(found) != sorted(fields):
        raise StructureError(
            f"{path} has changed: recorded with the fields {sorted(fields)}, "
            f"now {'no such class' if found is None else sorted(found)}"
        )
    return cls


def _named_tuple_fields(cls: type) -> list[str] | None:
    fields = getattr(cls, "_fields", None)
    return list(fields) if issubclass(cls, tuple) and fields is not None else None


def _dataclass_fields(cls: type) -> list[str] | None:
    if not dataclasses.is_dataclass(cls):
        return None
    return [field.name for field in dataclasses.fields(cls)]
