"""Passes over the jaxpr of a step, each equal to its input up to rounding."""

from export.passes.collapse_reshapes import collapse_reshapes
from export.passes.dead_code import remove_dead_code, used_inputs
from export.passes.dead_columns import drop_dead_columns
from export.passes.fold_constants import fold_constants
from export.passes.fold_scales import fold_scales
from export.passes.inline_calls import inline_calls
from export.passes.merge_linear_maps import merge_linear_maps
from export.passes.pack_delays import PackedDelays, pack_delays
from export.passes.simplify_identities import simplify_identities
from export.passes.split_slices import split_slices
from export.passes.take_slots import take_slots

__all__ = [
    "PackedDelays",
    "collapse_reshapes",
    "drop_dead_columns",
    "fold_constants",
    "fold_scales",
    "inline_calls",
    "merge_linear_maps",
    "pack_delays",
    "remove_dead_code",
    "simplify_identities",
    "split_slices",
    "take_slots",
    "used_inputs",
]
