"""A mixin that turns frozen dataclasses into JAX pytrees."""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import jax

# ``typing.Self`` would read better, but beartype only knows it in classes it decorates as a whole.
T = TypeVar("T")


class JaxDataclass:
    """Pytree behaviour for a frozen dataclass; every field is a child.

    Unflattening bypasses ``__init__``: JAX rebuilds containers around tracers and placeholder
    objects, which run-time type checks in ``__init__`` must never see.

    Example:
        >>> import dataclasses, jax
        >>> @jax.tree_util.register_pytree_with_keys_class
        ... @dataclasses.dataclass(frozen=True)
        ... class Point(JaxDataclass):
        ...     x: float
        ...     y: float = 0.0
        >>> jax.tree.map(lambda value: value + 1.0, Point(x=1.0)).replace(y=5.0)
        Point(x=2.0, y=5.0)
    """

    def replace(self: T, **changes: Any) -> T:
        """Returns a copy with the named fields changed.

        Raises:
            TypeError: a name is not a field.
        """
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Returns the field values in field order, and the field names."""
        names = _field_names(type(self))
        return tuple(getattr(self, name) for name in names), names

    def tree_flatten_with_keys(
        self,
    ) -> tuple[tuple[tuple[Any, Any], ...], tuple[str, ...]]:
        """Like ``tree_flatten``, with the key under which each child appears in tree paths.

        Used by ``jax.tree_util.register_pytree_with_keys_class``; classes registered with
        ``register_pytree_node_class`` have numbered paths instead.
        """
        names = _field_names(type(self))
        children = tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names)
        return children, names

    @classmethod
    def tree_unflatten(cls: type[T], names: tuple[str, ...], children: Iterable[Any]) -> T:
        """Rebuilds an instance from what ``tree_flatten`` returned, without ``__init__``."""
        instance = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(instance, name, child)
        return instance


def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))
