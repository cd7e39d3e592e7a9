"""Explain why a network that works with its delays as rings fails in time order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from export.delay_layout import delay_modules
from export.errors import DelayLayoutError, ExportError, NetworkError
from export.network_copy import NetworkCopy, fresh_rows
from export.trace import trace_step

REMEDY = (
    "Read it with `module.delay_line.read(carry['buffer'], carry.get('idx'), k)`, which knows both "
    "layouts, or keep the values that you need in a carry of your own"
)


@contextlib.contextmanager
def failures_explained(reference: NetworkCopy, observation: Any, **options: Any) -> Iterator[None]:
    """Inside, a network that fails in time order only is refused with the reason.

    Args:
        reference: The network with its rings.
        observation: A tree of `jax.ShapeDtypeStruct` without a batch axis.
        options: Of `trace_step`.

    Raises:
        DelayLayoutError: In place of a `NetworkError` that the network does not give with rings.
    """
    try:
        yield
    except DelayLayoutError:
        raise
    except NetworkError as error:
        modules = delay_modules(reference.merge())
        if not modules or not _works(reference, observation, options):
            raise
        raise DelayLayoutError(
            f"the network works with its delays as rings, but not in time order, the layout of an "
            f"exported step, which has no pointer: {error}. Something reads the carry of "
            f"{listed(modules)} itself. {REMEDY}"
        ) from error


def _works(reference: NetworkCopy, observation: Any, options: dict[str, Any]) -> bool:
    try:
        fresh = reference.initialize_state(2)
        rows = jax.tree.unflatten(jax.tree.structure(fresh), fresh_rows(reference))
        trace_step(reference, rows, observation, **options)
    except ExportError:
        return False
    return True


def listed(modules: list[str]) -> str:
    """Return names of modules as a message has them."""
    return ", ".join(f"'{module}'" for module in modules)
