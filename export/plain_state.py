"""What a module keeps in plain Python, beside its Variables: numbers, containers, other objects.

One definition for all who have to deal with it: what is copied for a private network, and what is
watched for changes.
"""

from __future__ import annotations

import collections
import enum
import functools
import types
from typing import Any

import jax
import numpy as np
from flax import nnx

VALUES: tuple[type, ...] = (bool, int, float, complex, str, bytes, type(None))
"""What cannot change in place."""
CONTAINERS = (list, dict, set, collections.deque)
"""What can, and holds other values."""
BOOKKEEPING = ("_export_", "_object__", "_pytree__")
"""How attributes begin that Flax or an export gave to a module."""

_OTHERS_BUSINESS = (
    nnx.Pytree,
    nnx.Variable,
    jax.Array,
    np.ndarray,
    np.generic,
    enum.Enum,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    functools.partial,
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or as such a class would be


def is_plain_object(value: Any) -> bool:
    """Return whether `value` is an object of a user's class that keeps its state as most do.

    Not so are modules, Variables, arrays, functions and members of enumerations, and classes that
    have no attributes or say themselves how they are copied or pickled.
    """
    cls = type(value)
    if isinstance(value, (*_OTHERS_BUSINESS, *VALUES, *CONTAINERS, tuple, frozenset)):
        return False
    if not cls.__flags__ & _HEAP_TYPE or cls.__module__.partition(".")[0] in ("jax", "jaxlib"):
        return False
    if not hasattr(value, "__dict__") and not any("__slots__" in vars(base) for base in cls.mro()):
        return False
    ways_to_copy = ("__reduce_ex__", "__reduce__", "__getstate__")
    return all(getattr(cls, way) is getattr(object, way) for way in ways_to_copy) and not any(
        hasattr(cls, way) for way in ("__copy__", "__deepcopy__", "__setstate__")
    )


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a plain object by name, those in slots included."""
    state: Any = object.__getstate__(value)
    in_dict, in_slots = state if isinstance(state, tuple) else (state, None)
    return {**(in_dict or {}), **(in_slots or {})}
