"""Give a copied network containers and objects of its own.

Flax copies Variables; whatever else a module holds is shared between a network and its copies. A
step that is traced and appends to such a list would leave a tracer in the user's network.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from flax import nnx

from export.plain_state import BOOKKEEPING, CONTAINERS, attributes_of, is_plain_object


def own_containers(network: nnx.Module) -> None:
    """Replace what modules of `network` hold in plain Python by copies, at any depth.

    That is containers, NumPy arrays, and objects as `plain_state.is_plain_object` knows them. What
    two modules share they go on sharing. Other objects are left as they are.

    Args:
        network: A private copy, changed in place.
    """
    copies: dict[int, Any] = {}
    for _, module in nnx.iter_modules(network):
        attributes = vars(module)
        for name, value in list(attributes.items()):
            if not name.startswith(BOOKKEEPING):
                attributes[name] = _copied(value, copies)


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
