"""Which passes a step goes through, in which order, and which of them may be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax.extend import core as jcore

from export.errors import ExportError
from export.passes.collapse_reshapes import collapse_reshapes
from export.passes.dead_columns import drop_dead_columns
from export.passes.fold_scales import fold_scales
from export.passes.merge_linear_maps import merge_linear_maps
from export.passes.pack_delays import pack_delays
from export.passes.simplify_identities import simplify_identities
from export.passes.split_slices import split_slices
from export.passes.take_slots import take_slots

Pass = Callable[[jcore.ClosedJaxpr], jcore.ClosedJaxpr]

REQUIRED = {
    "inline_calls": "nothing that follows looks into a call",
    "fold_constants": "weights and statistics would not become constants",
    "remove_dead_code": "what no action needs would stay, a critic and random draws among it",
}
"""Passes that are always applied, and why."""

BEFORE_PRUNING: tuple[Pass, ...] = (simplify_identities,)
AFTER_PACKING: tuple[Pass, ...] = (collapse_reshapes,)
"""After `pack_delays`, which changes the carry and is not a pass like the others."""
FOR_OWN_RULES: tuple[Pass, ...] = (
    drop_dead_columns,
    fold_scales,
    merge_linear_maps,
    take_slots,
    split_slices,
)
"""For the formats that our own rules write: portable SavedModel and ONNX. What XLA compiles keeps
its matrices whole, since a matrix of another shape is summed up in another order."""

SWITCHABLE = tuple(
    one.__name__ for one in (*BEFORE_PRUNING, pack_delays, *AFTER_PACKING, *FOR_OWN_RULES)
)
"""Names that `disabled_passes` may hold."""


def checked_passes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of passes to leave out, each once, in the order of `SWITCHABLE`.

    Raises:
        ExportError: A name is not known, or is that of a pass that an export cannot do without.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ExportError(
            f"disabled_passes must be a list of names, some of {list(SWITCHABLE)}, got {names!r}"
        )
    for name in names:
        if name in REQUIRED:
            raise ExportError(
                f"disabled_passes: {name!r} cannot be switched off, since {REQUIRED[name]}; those "
                f"that can are {list(SWITCHABLE)}"
            )
        if name not in SWITCHABLE:
            raise ExportError(
                f"disabled_passes: there is no pass {name!r}; those that can be switched off are "
                f"{list(SWITCHABLE)}"
            )
    return tuple(name for name in SWITCHABLE if name in names)


def apply_passes(
    passes: Sequence[Pass], closed: jcore.ClosedJaxpr, disabled: Sequence[str]
) -> jcore.ClosedJaxpr:
    """Return `closed` after those of `passes` that `disabled` does not name."""
    for one in passes:
        if one.__name__ not in disabled:
            closed = one(closed)
    return closed
