"""One form for observations that arrive in many kinds of container."""

from collections.abc import Mapping
from typing import Any

import jax


def is_namedtuple(value: Any) -> bool:
    """Whether a value is an instance of a named tuple class."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def rebuild_sequence(original: Any, items: list[Any]) -> Any:
    """Returns items in the kind of sequence that ``original`` is: list, tuple or named tuple."""
    if is_namedtuple(original):
        return type(original)(*items)
    return items if isinstance(original, list) else tuple(items)


def canonicalize(tree: Any) -> Any:
    """Replaces every mapping by a plain dict; lists, tuples and named tuples keep their kind.

    Simulators hand out frozen or otherwise special mappings, which JAX sees as different
    structures or as leaves.

    Args:
        tree: A pytree; nodes of other kinds are returned as they are.

    Returns:
        The same values in plain containers.
    """
    if isinstance(tree, Mapping):
        return {key: canonicalize(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return rebuild_sequence(tree, [canonicalize(value) for value in tree])
    return tree


def require_same_structure(owner: str, expected: Any, given: Any) -> None:
    """Checks that two pytrees differ in nothing but their leaves.

    Raises:
        ValueError: they do; the message names the owner and the paths that are missing or surplus.
    """
    if jax.tree.structure(expected) == jax.tree.structure(given):
        return
    expected_paths, given_paths = _leaf_paths(expected), _leaf_paths(given)
    missing = [path for path in expected_paths if path not in given_paths]
    surplus = [path for path in given_paths if path not in expected_paths]
    if missing or surplus:
        difference = f"missing leaves: {missing}, surplus leaves: {surplus}"
    else:
        difference = f"given {jax.tree.structure(given)}, expected {jax.tree.structure(expected)}"
    raise ValueError(
        f"{owner}: the input's structure differs from the one given at construction; "
        f"{difference}. Pass the same containers and keys, or rebuild the module."
    )


def _leaf_paths(tree: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path) or "(root)"
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
