"""Describe JAX pytrees in the bundle's own terms, and name their leaves.

`serving.tree` can flatten and rebuild a tree without JAX. This module derives such a description
from an example and gives every leaf its tensor name: the path joined by dots under its role.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from export.errors import ObservationSpecError
from serving import tree as serving_tree

Path = tuple[str | int, ...]


def leaf_names(role: str, paths: list[Path]) -> list[str]:
    """Return one unique tensor name per path, `role` joined with the path's parts by dots.

    Characters outside letters, digits, `_` and `-` become `_`; a name that is then taken gets a
    number, so that two leaves never share a tensor. Names that differ only in case or in `.`, `-`
    and `_` count as the same, since TensorFlow cannot tell them apart.
    """
    names: list[str] = []
    taken: set[str] = set()
    for path in paths:
        stem = ".".join([role, *(re.sub(r"[^A-Za-z0-9_-]", "_", str(part)) for part in path)])
        name = stem
        suffix = 1
        while _as_tensorflow_sees(name) in taken:
            suffix += 1
            name = f"{stem}_{suffix}"
        taken.add(_as_tensorflow_sees(name))
        names.append(name)
    return names


def _as_tensorflow_sees(name: str) -> str:
    return re.sub(r"[.-]", "_", name).lower()


def paths_of(tree: Any, what: str) -> list[Path]:
    """Return the path of every leaf of `tree`, in the order of `jax.tree.leaves`."""
    return [path for path, _ in _children_first(tree, (), what)]


def flat_paths(tree: Any) -> list[tuple[Path, Any]]:
    """Return path and value of every leaf, also of trees that no bundle could rebuild."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(tuple(_key_of(entry) for entry in path), leaf) for path, leaf in flat]


def describe(tree: Any, what: str, make_leaf: Callable[[Path, Any], serving_tree.Leaf]) -> Any:
    """Return the `serving.tree` description of `tree`.

    Args:
        tree: Any pytree of dicts, lists, tuples, named tuples, dataclasses and leaves.
        what: Word for messages, such as `observation`.
        make_leaf: Called with path and leaf, gives the leaf's description.

    Raises:
        ObservationSpecError: A container is of a kind that cannot be rebuilt without its code.
    """
    return _describe(tree, (), what, make_leaf)


def _describe(tree: Any, path: Path, what: str, make_leaf: Callable[..., Any]) -> Any:
    kind, keys, children = _one_level(tree, path, what)
    if kind == "leaf":
        return make_leaf(path, tree)
    if kind == "none":
        return serving_tree.Nothing()
    nodes = [_describe(c, (*path, k), what, make_leaf) for k, c in zip(keys, children, strict=True)]
    if kind == "dict":
        return serving_tree.Dict(keys=keys, children=nodes)
    if kind == "list":
        return serving_tree.List(children=nodes)
    if kind == "tuple":
        return serving_tree.Tuple(children=nodes)
    cls = type(tree)
    node = serving_tree.NamedTuple if kind == "namedtuple" else serving_tree.Dataclass
    return node(
        name=cls.__name__,
        class_path=f"{cls.__module__}:{cls.__qualname__}",
        fields=[str(key) for key in keys],
        children=nodes,
    )


def require_importable_classes(tree: Any, what: str) -> None:
    """Check that `rebuild`, also in another process, can find the classes of `tree` by name.

    Raises:
        ObservationSpecError: Naming the first class that cannot be imported.
    """

    def visit(node: Any, path: Path) -> None:
        kind, keys, children = _one_level(node, path, what)
        if kind in ("namedtuple", "dataclass"):
            cls = type(node)
            class_path = f"{cls.__module__}:{cls.__qualname__}"
            if _find_class(class_path) is not cls:
                raise ObservationSpecError(
                    f"{'.'.join([what, *map(str, path)])} is a {class_path}, a class that cannot "
                    "be imported by that name (one made inside a function, or replaced). Define it "
                    "at the top level of its module, or use a dict"
                )
        for key, child in zip(keys, children, strict=True):
            visit(child, (*path, key))

    visit(tree, ())


def _find_class(class_path: str) -> Any:
    try:
        return _import_class(class_path)
    except ObservationSpecError:
        return None


def _children_first(tree: Any, path: Path, what: str) -> list[tuple[Path, Any]]:
    kind, keys, children = _one_level(tree, path, what)
    if kind == "leaf":
        return [(path, tree)]
    found: list[tuple[Path, Any]] = []
    for key, child in zip(keys, children, strict=True):
        found += _children_first(child, (*path, key), what)
    return found


def _one_level(tree: Any, path: Path, what: str) -> tuple[str, list[Any], list[Any]]:
    """Classify a node: its kind, the keys of its children and the children in JAX's order."""
    if tree is None:
        return "none", [], []
    where = ".".join([what, *map(str, path)])
    if isinstance(tree, Mapping):
        _check_keys(tree, where)
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    if len(flat) == 1 and not flat[0][0]:
        return "leaf", [], []
    keys = [_key_of(entry[0][0]) for entry in flat]
    children = [entry[1] for entry in flat]
    if isinstance(tree, Mapping):
        if keys != sorted(keys):
            raise ObservationSpecError(
                f"{where} is a {type(tree).__qualname__} whose keys are in the order {keys}; a "
                "bundle keeps them sorted. Use a plain dict"
            )
        return "dict", keys, children
    fields = getattr(tree, "_fields", None)
    if isinstance(tree, tuple) and fields is not None:
        return "namedtuple", list(fields), children
    if isinstance(tree, tuple):
        return "tuple", keys, children
    if isinstance(tree, list):
        return "list", keys, children
    if dataclasses.is_dataclass(tree):
        names = [field.name for field in dataclasses.fields(tree)]
        if all(isinstance(key, str) for key in keys):
            _check_static_fields(tree, set(names) - set(keys), where)
            return "dataclass", keys, children
        if len(keys) == len(names):
            return "dataclass", names, children
    raise ObservationSpecError(
        f"{where} is a {type(tree).__module__}.{type(tree).__qualname__}, a container that "
        "cannot be "
        "rebuilt by name; use dicts, lists, tuples, named tuples or dataclasses"
    )


def _check_keys(tree: Mapping[Any, Any], where: str) -> None:
    all_strings = all(isinstance(key, str) for key in tree)
    all_integers = all(isinstance(key, int) and not isinstance(key, bool) for key in tree)
    if not (all_strings or all_integers):
        raise ObservationSpecError(
            f"{where} is a mapping with the keys {list(tree)}; keys must all be str or all be int. "
            "Rename them"
        )


def _check_static_fields(tree: Any, names: set[str], where: str) -> None:
    """Refuse what `rebuild` cannot put back: a field that holds no data, unless at its default."""
    for name in sorted(names):
        default = getattr(type(tree), name, dataclasses.MISSING)
        value = getattr(tree, name)
        if default is not value and default != value:
            raise ObservationSpecError(
                f"{where} is a {type(tree).__qualname__} whose field {name!r} holds no array and "
                f"differs from its default: {value!r}. A bundle does not record it; give it a "
                "default of that value, or use a dict"
            )


def _key_of(entry: Any) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)


def rebuild(node: Any, leaves: list[Any]) -> Any:
    """Build the pytree that `node` describes, with the user's own container classes.

    The counterpart of `serving.tree.unflatten` for JAX: a network expects its observation in the
    classes that it was trained with, so these are imported by name.

    Args:
        node: A `serving.tree` description.
        leaves: One value per leaf, in the description's order.
    """
    remaining = iter(leaves)
    return _rebuild(node, remaining)


def _rebuild(node: Any, remaining: Any) -> Any:
    if isinstance(node, serving_tree.Leaf):
        return next(remaining)
    if isinstance(node, serving_tree.Nothing):
        return None
    children = [_rebuild(child, remaining) for child in node.children]
    if isinstance(node, serving_tree.Dict):
        return dict(zip(node.keys, children, strict=True))
    if isinstance(node, serving_tree.List):
        return children
    if isinstance(node, serving_tree.Tuple):
        return tuple(children)
    cls = _import_class(node.class_path)
    values = dict(zip(node.fields, children, strict=True))
    if isinstance(node, serving_tree.NamedTuple):
        return cls(**values)
    # Registered dataclasses may check their fields in __init__; tracers and keys must pass.
    instance = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def _import_class(class_path: str) -> Any:
    module_name, _, qualified_name = class_path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualified_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ObservationSpecError(
            f"the tree was built with the class {class_path}, which cannot be imported ({error}); "
            "make its module importable here, with the class at its top level"
        ) from error
    return found


def leaf_dtype(leaf: Any) -> np.dtype:
    """Return the numpy dtype of a leaf, Python scalars as JAX would take them."""
    return (
        np.dtype(jax.numpy.asarray(leaf).dtype)
        if not hasattr(leaf, "dtype")
        else np.dtype(leaf.dtype)
    )
