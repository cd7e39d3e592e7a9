"""Trace a network into the jaxpr of one step, and keep only what the action needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export as jax_export
from jax.extend import core as jcore

from export.errors import NetworkError
from export.extra_outputs import choose
from export.module_scopes import module_scopes
from export.network_copy import NetworkCopy, action_of_output
from export.passes import fold_constants, inline_calls, remove_dead_code, used_inputs
from export.passes.pipeline import BEFORE_PRUNING, apply_passes
from export.passes.rewrite import with_outputs
from export.python_state import meaning, noted_changes, refuse_changes_that_matter
from export.refusals import (
    refuse_callbacks,
    refuse_dtypes,
    refuse_hidden_state,
    refuse_randomness,
)
from export.structure import Path, leaf_names, paths_of
from export.trace_failures import explained_failures


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """A step as a closed jaxpr, and how its inputs and outputs relate to the network.

    Inputs are the kept carry leaves, then the kept observation leaves; outputs the action leaves,
    the next values of the kept carry leaves, the extra outputs. Each array leads with the batch.
    """

    closed: jcore.ClosedJaxpr
    unsimplified: jcore.ClosedJaxpr
    """As recorded: inputs are all Variables, all carry leaves and all observation leaves."""
    kept_carry: list[bool]
    """One flag per leaf of the exported carry."""
    kept_observation: list[bool]
    """One flag per leaf of the observation."""
    action: Any
    """The action's tree, with `jax.ShapeDtypeStruct` leaves without a batch axis."""
    extras: dict[str, Any]
    """Extra output → its spec, likewise."""
    extra_paths: dict[str, Path]
    """Extra output → its path."""


def trace_step(
    copy: NetworkCopy,
    carry_rows: Any,
    observation: Any,
    *,
    batch_size: int | None,
    extra_outputs: Sequence[str] = (),
    disabled_passes: Sequence[str] = (),
) -> TracedStep:
    """Trace, simplify and prune the step of `copy`.

    Args:
        copy: The network in evaluation mode.
        carry_rows: The carry of one environment, a tree of arrays or specs without a batch axis.
        observation: A tree of `jax.ShapeDtypeStruct` without a batch axis.
        batch_size: A fixed number of environments, or None for any.
        extra_outputs: Names for `export.extra_outputs.choose`.
        disabled_passes: Names from `export.passes.pipeline.SWITCHABLE`.

    Raises:
        NetworkError: The network cannot be called this way or returns something else than a step.
        RandomnessError: The action depends on a random draw.
        HostCallbackError: The step calls back into Python.
        HiddenStateError: The action depends on a Variable that the step rewrites, or on an
            attribute of a module that is no Variable and that the step changes.
    """
    arguments = (copy, carry_rows, observation, batch_size, extra_outputs)
    raw = _trace(*arguments, calls_before=0)
    traced = _simplified(raw, copy, disabled_passes)
    next_call = _trace(*arguments, calls_before=1)
    if meaning(inline_calls(raw.closed)) != meaning(inline_calls(next_call.closed)):
        # It may still be something that no output depends on.
        simplified = _simplified(next_call, copy, disabled_passes)
        refuse_changes_that_matter(raw.changes_in_python, traced.closed, simplified.closed)
    for role, tree in {"action": traced.action, **traced.extras}.items():
        refuse_dtypes(role, tree, None)
    refuse_dtypes("carry", carry_rows, traced.kept_carry)
    return traced


def _simplified(raw: _RawStep, copy: NetworkCopy, disabled: Sequence[str]) -> TracedStep:
    closed = inline_calls(raw.closed)
    changed = [
        closed.jaxpr.outvars[raw.first_state_output + index] is not closed.jaxpr.invars[index]
        for index in range(raw.n_state)
    ]
    state = jax.tree.leaves(copy.state)
    known = {index: state[index] for index in range(raw.n_state) if not changed[index]}
    closed = apply_passes(BEFORE_PRUNING, fold_constants(closed, known), disabled)
    return _prune(closed, raw, copy, changed)


@dataclasses.dataclass(frozen=True)
class _RawStep:
    closed: jcore.ClosedJaxpr
    n_state: int
    n_carry: int
    n_action: int
    n_extra: int
    action: Any
    extras: dict[str, Any]
    extra_paths: dict[str, Path]
    changes_in_python: list[str]
    """What the call changes in attributes that are no Variables, in words."""

    @property
    def first_state_output(self) -> int:
        return self.n_action + self.n_extra + self.n_carry


def _trace(
    copy: NetworkCopy,
    carry_rows: Any,
    observation: Any,
    batch_size: int | None,
    extra_outputs: Sequence[str],
    *,
    calls_before: int,
) -> _RawStep:
    """Trace a call of a network that was called `calls_before` times in Python alone."""
    batch = jax_export.symbolic_shape("b")[0] if batch_size is None else batch_size
    carry = jax.tree.map(lambda leaf: _batched(leaf, batch), carry_rows)
    batched_observation = jax.tree.map(lambda leaf: _batched(leaf, batch), observation)
    state_leaves, state_tree = jax.tree.flatten(copy.state)
    state_paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(copy.state)[0]]
    trees: dict[str, Any] = {}
    changes: list[str] = []

    def step(state: list[Any], carry: Any, observation: Any) -> tuple[Any, ...]:
        variables = jax.tree.unflatten(state_tree, state)
        network = copy.merge(variables)
        for _ in range(calls_before):
            network(carry, observation)
            nnx.update(network, variables)
        with noted_changes(network) as noted:
            output = network(carry, observation)
        changes[:] = noted
        # As arrays: a network may put out Python numbers, which lead with no batch axis.
        action, chosen = _action_and_extras(output, extra_outputs)
        action = jax.tree.map(jnp.asarray, action)
        extras = {name: jnp.asarray(leaf) for name, (_, leaf) in chosen.items()}
        _check_next_carry(carry, output.next_state)
        after = jax.tree_util.tree_flatten_with_path(nnx.split(network)[1])[0]
        after = dict(after)
        trees["action"], trees["extras"] = action, extras
        trees["extra_paths"] = {name: path for name, (path, _) in chosen.items()}
        # A Variable that the call adds is not there at the next call either: it carries nothing.
        return (
            jax.tree.leaves(action),
            jax.tree.leaves(extras),
            jax.tree.leaves(output.next_state),
            [after[path] for path in state_paths],
        )

    closed = _make_jaxpr(copy.merge(), step, state_leaves, carry, batched_observation, batch_size)
    names = leaf_names("action", paths_of(trees["action"], "action"))
    if not names:
        raise NetworkError("the network's action is an empty tree; there is nothing to export")
    outputs = dict(zip(names, jax.tree.leaves(trees["action"]), strict=True))
    for name, leaf in {**outputs, **trees["extras"]}.items():
        if leaf.ndim == 0 or leaf.shape[0] != batch:
            raise NetworkError(f"{name} has shape {leaf.shape}; it must lead with the batch axis")
    return _RawStep(
        closed=closed,
        n_state=len(state_leaves),
        n_carry=len(jax.tree.leaves(carry)),
        n_action=len(names),
        n_extra=len(trees["extras"]),
        action=jax.tree.map(_without_batch, trees["action"]),
        extras=jax.tree.map(_without_batch, trees["extras"]),
        extra_paths=trees["extra_paths"],
        changes_in_python=changes,
    )


def _make_jaxpr(
    network: nnx.Module,
    step: Any,
    state: list[Any],
    carry: Any,
    observation: Any,
    batch_size: int | None,
) -> jcore.ClosedJaxpr:
    with explained_failures(observation, batch_size), module_scopes(network):
        return jax.make_jaxpr(step)(state, carry, observation)


def _action_and_extras(
    output: Any, extra_outputs: Sequence[str]
) -> tuple[Any, dict[str, tuple[Path, Any]]]:
    for attribute in ("next_state", "output"):
        if not hasattr(output, attribute):
            raise NetworkError(
                f"the network returned {type(output).__qualname__}, expected a "
                "StatefulModuleOutput "
                f"(it has no '{attribute}')"
            )
    return action_of_output(output), choose(output, extra_outputs)


def _check_next_carry(carry: Any, next_carry: Any) -> None:
    before, after = jax.tree.structure(carry), jax.tree.structure(next_carry)
    if before != after:
        raise NetworkError(
            f"the network returns a carry of another structure than initialize_state: {after} "
            f"instead of {before}"
        )
    names = leaf_names("carry", paths_of(carry, "carry"))
    for name, old, new in zip(
        names, jax.tree.leaves(carry), jax.tree.leaves(next_carry), strict=True
    ):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise NetworkError(
                f"{name} is {old.dtype}{list(old.shape)} before a step and "
                f"{new.dtype}{list(new.shape)} after it; both must be the same"
            )


def _prune(
    closed: jcore.ClosedJaxpr,
    raw: _RawStep,
    copy: NetworkCopy,
    changed: list[bool],
) -> TracedStep:
    n_outputs = len(closed.jaxpr.outvars)
    first_carry_output = raw.n_action + raw.n_extra
    kept = [False] * raw.n_carry
    while True:
        wanted = [index < first_carry_output for index in range(n_outputs)]
        wanted[first_carry_output : raw.first_state_output] = kept
        used = used_inputs(closed, wanted)
        needed = used[raw.n_state : raw.n_state + raw.n_carry]
        grown = [old or new for old, new in zip(kept, needed, strict=True)]
        if grown == kept:
            break
        kept = grown
    observation_used = used[raw.n_state + raw.n_carry :]
    if not any(kept) and not any(observation_used):
        raise NetworkError(
            "the action is a constant: it depends on neither the observation nor the carry. "
            "Connect what computes it to an input"
        )
    pruned = remove_dead_code(closed, wanted, [*used[: raw.n_state], *kept, *observation_used])
    refuse_callbacks(pruned)
    refuse_randomness(pruned)
    refuse_hidden_state(used[: raw.n_state], changed, copy)
    return TracedStep(
        closed=_actions_carry_extras(pruned, raw, sum(kept)),
        unsimplified=raw.closed,
        kept_carry=kept,
        kept_observation=observation_used,
        action=raw.action,
        extras=raw.extras,
        extra_paths=raw.extra_paths,
    )


def _actions_carry_extras(
    closed: jcore.ClosedJaxpr, raw: _RawStep, n_carry: int
) -> jcore.ClosedJaxpr:
    """Put the extra outputs last, where the bundle's format has them."""
    outputs = closed.jaxpr.outvars
    action, extras = outputs[: raw.n_action], outputs[raw.n_action : raw.n_action + raw.n_extra]
    carry = outputs[raw.n_action + raw.n_extra :]
    assert len(carry) == n_carry
    return with_outputs(closed, [*action, *carry, *extras])


def _batched(leaf: Any, batch: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype)


def _without_batch(leaf: Any) -> jax.ShapeDtypeStruct:
    shape = leaf.shape[1:]
    if not all(isinstance(size, int | np.integer) for size in shape):
        raise NetworkError(
            f"an output has the shape {leaf.shape}: the batch size may appear in the first "
            "axis only"
        )
    return jax.ShapeDtypeStruct(shape, leaf.dtype)
