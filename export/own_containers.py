"""Give a copied network lists and dictionaries of its own.

Flax copies Variables; whatever else a module holds is shared between a network and its copies. A
step that is traced and appends to such a list would leave a tracer in the user's network.
"""

from __future__ import annotations

import collections
import copy
from typing import Any

from flax import nnx

_CONTAINERS = (list, dict, set, collections.deque)


def own_containers(network: nnx.Module) -> None:
    """Replace the plain containers that modules of `network` hold by copies, at any depth.

    What two modules share they go on sharing. Other objects are left as they are.

    Args:
        network: A private copy, changed in place.
    """
    copies: dict[int, Any] = {}
    for _, module in nnx.iter_modules(network):
        attributes = vars(module)
        for name, value in list(attributes.items()):
            if not name.startswith(("_object__", "_pytree__")):
                attributes[name] = _copied(value, copies)


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, _CONTAINERS):
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
    return value
