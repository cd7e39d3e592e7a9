"""Passes over the jaxpr of a step, each equal to its input up to rounding."""

from export.passes.dead_code import remove_dead_code, used_inputs
from export.passes.dead_columns import drop_dead_columns
from export.passes.fold_constants import fold_constants
from export.passes.inline_calls import inline_calls
from export.passes.simplify_identities import simplify_identities

__all__ = [
    "drop_dead_columns",
    "fold_constants",
    "inline_calls",
    "remove_dead_code",
    "simplify_identities",
    "used_inputs",
]
