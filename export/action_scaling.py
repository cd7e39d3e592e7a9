"""What makes the robot's command of the network's action: scale, offset and limits."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import msgspec

from export.errors import MetadataError
from serving.action_values import action_values
from serving.manifest import Metadata, Port
from serving.manifest_checks import SCALING_FIELDS

FIELDS = SCALING_FIELDS
"""Fields of the metadata that make the robot's command of the network's action, in this order:
`min(max(action * scale + offset, low), high)`."""


def settle_who_applies(metadata: Metadata, *, in_step: bool) -> tuple[Metadata, list[str]]:
    """Return the metadata with `action_applied_by` filled in, and the fields the step applies.

    Args:
        metadata: What the user gave.
        in_step: The step is to apply what is given.

    Raises:
        MetadataError: The step is to apply fields that are not given, or that the user says the
            robot applies.
    """
    given = [field for field in FIELDS if getattr(metadata, field) is not None]
    if not in_step:
        if given and metadata.action_applied_by is None:
            metadata = msgspec.structs.replace(metadata, action_applied_by="robot")
        return metadata, []
    if not given:
        raise MetadataError(
            f"apply_action_scaling=True, but the metadata has none of {list(FIELDS)}; give some, "
            "or leave apply_action_scaling out"
        )
    if metadata.action_applied_by == "robot":
        raise MetadataError(
            f"apply_action_scaling=True, but the metadata says action_applied_by: 'robot'; then "
            f"{given} would be applied twice. Leave one of the two out"
        )
    return msgspec.structs.replace(metadata, action_applied_by="policy"), given


def apply_action_values(
    leaves: Sequence[jax.Array], ports: Sequence[Port], metadata: Metadata, fields: Sequence[str]
) -> list[jax.Array]:
    """Return the action's leaves `[B, ...]` after `fields`, each computed in the leaf's dtype."""
    operations = {
        "action_scale": jnp.multiply,
        "action_offset": jnp.add,
        "action_low": jnp.maximum,
        "action_high": jnp.minimum,
    }
    result = list(leaves)
    for field in FIELDS:
        if field not in fields:
            continue
        arrays = action_values(metadata, field, ports) or []
        result = [
            operations[field](leaf, jnp.asarray(array, leaf.dtype))
            for leaf, array in zip(result, arrays, strict=True)
        ]
    return result
