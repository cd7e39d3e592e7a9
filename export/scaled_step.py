"""A step that scales, shifts and limits its action itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from export.action_scaling import apply_action_values
from export.errors import MetadataError
from export.passes import inline_calls
from export.passes.rewrite import with_outputs
from export.step import Step
from serving.manifest import Metadata


def with_action_scaling(step: Step, metadata: Metadata, fields: Sequence[str]) -> Step:
    """Return `step` with `fields` of the metadata applied to its action.

    Raises:
        MetadataError: A leaf of the action holds no floats.
    """
    for port in step.action_ports:
        if not port.dtype.startswith("float"):
            raise MetadataError(
                f"apply_action_scaling=True, but {port.name} is {port.dtype}; only floats can be "
                "scaled. Leave apply_action_scaling out and let the robot apply it"
            )

    def scaled(*inputs: jax.Array) -> list[jax.Array]:
        outputs = step.function()(*inputs)
        n_action = len(step.action_ports)
        action = apply_action_values(outputs[:n_action], step.action_ports, metadata, fields)
        return [*action, *outputs[n_action:]]

    closed = inline_calls(jax.make_jaxpr(scaled)(*step.input_specs()))
    closed = with_outputs(closed, closed.jaxpr.outvars)
    return dataclasses.replace(step, closed=closed)
