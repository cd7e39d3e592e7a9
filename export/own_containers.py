"""Give a copied network containers and objects of its own.

Flax copies Variables; whatever else a module holds is shared between a network and its copies. A
step that is traced and appends to such a list would leave a tracer in the user's network.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx

from export.plain_state import BOOKKEEPING, CONTAINERS, VALUES, attributes_of, is_plain_object

_HOLD_NO_MODULES = (*VALUES, np.ndarray, jax.Array, nnx.Variable)


def own_containers(network: nnx.Module) -> None:
    """Replace what modules of `network` hold in plain Python by copies, at any depth.

    That is containers, NumPy arrays, and objects as `plain_state.is_plain_object` knows them. What
    two modules share they go on sharing. Other objects are left as they are.

    Args:
        network: A private copy, changed in place.
    """
    copies: dict[int, Any] = {}
    for module in _modules(network):
        attributes = vars(module)
        for name, value in list(attributes.items()):
            if type(value) not in VALUES and not name.startswith(BOOKKEEPING):
                attributes[name] = _copied(value, copies)


def _modules(network: nnx.Module) -> Iterator[nnx.Module]:
    """Yield the modules that `nnx.iter_modules` finds, in another order and without their paths.

    Every copy of an export needs this, and what takes the time of `nnx.iter_modules` is paths and
    the order of attributes.
    """
    visited: set[int] = set()
    pending: list[Any] = [network]
    while pending:
        node = pending.pop()
        # By the class: to ask a Variable what it is an instance of is slow.
        if issubclass(type(node), _HOLD_NO_MODULES) or id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, nnx.Pytree):
            own = vars(node).items()
            pending += [value for name, value in own if not name.startswith(BOOKKEEPING)]
            if isinstance(node, nnx.Module):
                yield node
        elif (children := jax.tree_util.default_registry.flatten_one_level(node)) is not None:
            pending += children[0]


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, np.ndarray):
        copies[id(value)] = value.copy()
        return copies[id(value)]
    if isinstance(value, CONTAINERS):
        # Noted before it is filled, since it may hold itself.
        copies[id(value)] = made = copy.copy(value)
        if isinstance(made, dict):
            for key, item in list(made.items()):
                made[key] = _copied(item, copies)
        elif not isinstance(made, set):
            for index, item in enumerate(value):
                made[index] = _copied(item, copies)
        return made
    if isinstance(value, tuple):
        items = [_copied(item, copies) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if is_plain_object(value):
        try:
            made = copy.copy(value)
        except TypeError:  # of a class in C, which cannot be copied and keeps what it keeps
            return value
        copies[id(value)] = made
        for name, item in attributes_of(value).items():
            # Past the class's own __setattr__, which a frozen one forbids.
            object.__setattr__(made, name, _copied(item, copies))
        return made
    return value
