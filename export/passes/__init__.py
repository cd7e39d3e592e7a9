"""Passes over the jaxpr of a step, each equal to its input up to rounding."""

from export.passes.dead_code import remove_dead_code, used_inputs
from export.passes.dead_columns import drop_dead_columns
from export.passes.fold_constants import fold_constants
from export.passes.fold_scales import fold_scales
from export.passes.inline_calls import inline_calls
from export.passes.merge_linear_maps import merge_linear_maps
from export.passes.simplify_identities import simplify_identities
from export.passes.take_slots import take_slots

__all__ = [
    "drop_dead_columns",
    "fold_constants",
    "fold_scales",
    "inline_calls",
    "merge_linear_maps",
    "remove_dead_code",
    "simplify_identities",
    "take_slots",
    "used_inputs",
]
