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

from export.errors import HiddenStateError, NetworkError, RandomnessError
from export.module_scopes import module_path_of, module_scopes, source_line_of
from export.network_copy import NetworkCopy
from export.passes import (
    drop_dead_columns,
    fold_constants,
    inline_calls,
    remove_dead_code,
    simplify_identities,
    used_inputs,
)
from export.structure import leaf_names, paths_of
from nnx_ppo.networks.types import PPONetworkOutput
from serving.manifest_checks import DTYPES

EXTRA_OUTPUTS = ("value",)
"""Names that `extra_outputs` may hold."""

_RANDOM_PRIMITIVES = frozenset(
    [
        "random_bits",
        "random_wrap",
        "random_unwrap",
        "random_split",
        "random_fold_in",
        "random_seed",
        "random_clone",
        "random_gamma",
        "threefry2x32",
        "rng_bit_generator",
        "rng_uniform",
    ]
)


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """A step as a closed jaxpr, and how its inputs and outputs relate to the network.

    Inputs are the kept carry leaves, then the kept observation leaves; outputs the action leaves,
    the next values of the kept carry leaves, the extra outputs. Each array leads with the batch.
    """

    closed: jcore.ClosedJaxpr
    kept_carry: list[bool]
    """One flag per leaf of the exported carry."""
    kept_observation: list[bool]
    """One flag per leaf of the observation."""
    action: Any
    """The action's tree, with `jax.ShapeDtypeStruct` leaves without a batch axis."""
    extras: dict[str, Any]
    """The tree of each extra output, likewise."""


def trace_step(
    copy: NetworkCopy,
    carry_rows: Any,
    observation: Any,
    *,
    batch_size: int | None,
    extra_outputs: Sequence[str] = (),
) -> TracedStep:
    """Trace, simplify and prune the step of `copy`.

    Args:
        copy: The network in evaluation mode.
        carry_rows: The carry of one environment, a tree of arrays or specs without a batch axis.
        observation: A tree of `jax.ShapeDtypeStruct` without a batch axis.
        batch_size: A fixed number of environments, or None for any.
        extra_outputs: Names from `EXTRA_OUTPUTS`.

    Raises:
        NetworkError: The network cannot be called this way or returns something else than a step.
        RandomnessError: The action depends on a random draw.
        HiddenStateError: The action depends on a Variable that the step rewrites.
    """
    raw = _trace(copy, carry_rows, observation, batch_size, extra_outputs)
    closed = inline_calls(raw.closed)
    changed = [
        closed.jaxpr.outvars[raw.first_state_output + index] is not closed.jaxpr.invars[index]
        for index in range(raw.n_state)
    ]
    state = jax.tree.leaves(copy.state)
    known = {index: state[index] for index in range(raw.n_state) if not changed[index]}
    closed = simplify_identities(fold_constants(closed, known))
    traced = _prune(closed, raw, copy, changed)
    for role, tree in {"action": traced.action, **traced.extras}.items():
        _refuse_dtypes(role, tree, None)
    _refuse_dtypes("carry", carry_rows, traced.kept_carry)
    return traced


@dataclasses.dataclass(frozen=True)
class _RawStep:
    closed: jcore.ClosedJaxpr
    n_state: int
    n_carry: int
    n_action: int
    n_extra: int
    action: Any
    extras: dict[str, Any]

    @property
    def first_state_output(self) -> int:
        return self.n_action + self.n_extra + self.n_carry


def _trace(
    copy: NetworkCopy,
    carry_rows: Any,
    observation: Any,
    batch_size: int | None,
    extra_outputs: Sequence[str],
) -> _RawStep:
    batch = jax_export.symbolic_shape("b")[0] if batch_size is None else batch_size
    carry = jax.tree.map(lambda leaf: _batched(leaf, batch), carry_rows)
    batched_observation = jax.tree.map(lambda leaf: _batched(leaf, batch), observation)
    state_leaves, state_tree = jax.tree.flatten(copy.state)
    state_paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(copy.state)[0]]
    trees: dict[str, Any] = {}

    def step(state: list[Any], carry: Any, observation: Any) -> tuple[Any, ...]:
        network = copy.merge(jax.tree.unflatten(state_tree, state))
        output = network(carry, observation)
        # As arrays: a network may put out Python numbers, which lead with no batch axis.
        action, extras = jax.tree.map(jnp.asarray, _action_and_extras(output, extra_outputs))
        _check_next_carry(carry, output.next_state)
        after = jax.tree_util.tree_flatten_with_path(nnx.split(network)[1])[0]
        after = dict(after)
        trees["action"], trees["extras"] = action, extras
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
    for name, leaf in zip(names, jax.tree.leaves(trees["action"]), strict=True):
        if leaf.ndim == 0 or leaf.shape[0] != batch:
            raise NetworkError(f"{name} has shape {leaf.shape}; it must lead with the batch axis")
    return _RawStep(
        closed=closed,
        n_state=len(state_leaves),
        n_carry=len(jax.tree.leaves(carry)),
        n_action=len(names),
        n_extra=len(jax.tree.leaves(trees["extras"])),
        action=jax.tree.map(_without_batch, trees["action"]),
        extras=jax.tree.map(_without_batch, trees["extras"]),
    )


def _make_jaxpr(
    network: nnx.Module,
    step: Any,
    state: list[Any],
    carry: Any,
    observation: Any,
    batch_size: int | None,
) -> jcore.ClosedJaxpr:
    try:
        with module_scopes(network):
            return jax.make_jaxpr(step)(state, carry, observation)
    except NetworkError:
        raise
    except jax.errors.JAXTypeError as error:
        raise NetworkError(
            "the network cannot be traced: its Python code needs the value of an array, or "
            "keeps one "
            f"({_first_line(error)}). Use jax.lax.cond/jnp.where instead of `if` on arrays"
        ) from error
    except jcore.InconclusiveDimensionOperation as error:
        raise NetworkError(
            f"the network cannot be traced for any batch size: {_first_line(error)}. "
            "Do not branch on the batch size, or export with batch_size=N"
        ) from error
    except Exception as error:
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", observation)
        raise NetworkError(
            f"calling the network failed with {type(error).__name__}: {_first_line(error)}. It was "
            f"called with a batch of the example observation, {shapes}"
            + ("" if batch_size is not None else " ('b' stands for any batch size)")
        ) from error


def _action_and_extras(output: Any, extra_outputs: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    for attribute in ("next_state", "output"):
        if not hasattr(output, attribute):
            raise NetworkError(
                f"the network returned {type(output).__qualname__}, expected a "
                "StatefulModuleOutput "
                f"(it has no '{attribute}')"
            )
    action, result = action_of_output(output), output.output
    value = result.value_estimates if isinstance(result, PPONetworkOutput) else None
    extras: dict[str, Any] = {}
    for name in extra_outputs:
        if name == "value" and value is not None:
            extras["value"] = value
        else:
            raise NetworkError(
                f"extra output {name!r} is not available; known are {EXTRA_OUTPUTS}, and "
                "'value' only "
                "for a network that ends in a PPOAdapter"
            )
    return action, extras


def action_of_output(output: Any) -> Any:
    """Return the action's tree from what a network returned for one step."""
    result = output.output
    if isinstance(result, PPONetworkOutput):
        return result.actions
    return jax.tree.map(_action_of, result, is_leaf=_is_sampler_output)


def _is_sampler_output(node: Any) -> bool:
    return isinstance(node, dict) and {"action", "log_likelihood"} <= set(node)


def _action_of(node: Any) -> Any:
    return node["action"] if _is_sampler_output(node) else node


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
    closed: jcore.ClosedJaxpr, raw: _RawStep, copy: NetworkCopy, changed: list[bool]
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
    _refuse_randomness(pruned)
    _refuse_hidden_state(used[: raw.n_state], changed, copy)
    return TracedStep(
        closed=_actions_carry_extras(drop_dead_columns(pruned), raw, sum(kept)),
        kept_carry=kept,
        kept_observation=observation_used,
        action=raw.action,
        extras=raw.extras,
    )


def _actions_carry_extras(
    closed: jcore.ClosedJaxpr, raw: _RawStep, n_carry: int
) -> jcore.ClosedJaxpr:
    """Put the extra outputs last, where the bundle's format has them."""
    outputs = closed.jaxpr.outvars
    action, extras = outputs[: raw.n_action], outputs[raw.n_action : raw.n_action + raw.n_extra]
    carry = outputs[raw.n_action + raw.n_extra :]
    assert len(carry) == n_carry
    return jcore.ClosedJaxpr(
        closed.jaxpr.replace(
            outvars=[*action, *carry, *extras],
            debug_info=closed.jaxpr.debug_info.with_unknown_names(),
        ),
        closed.consts,
    )


def _refuse_dtypes(role: str, tree: Any, kept: list[bool] | None) -> None:
    names, leaves = leaf_names(role, paths_of(tree, role)), jax.tree.leaves(tree)
    for name, leaf, keep in zip(names, leaves, kept or [True] * len(leaves), strict=True):
        if keep and str(leaf.dtype) not in DTYPES:
            raise NetworkError(
                f"{name} has dtype {leaf.dtype}, which no tensor of a bundle can have; cast it to "
                "float32 in the network, and back where it comes in"
            )


def _refuse_randomness(pruned: jcore.ClosedJaxpr) -> None:
    for equation in pruned.jaxpr.eqns:
        inner = _first_random(equation)
        if inner is not None:
            raise RandomnessError(
                f"module '{module_path_of(equation)}' draws random numbers in eval() mode "
                f"(primitive '{inner.primitive.name}' at {source_line_of(inner)}) and the action "
                "depends on them. Make the module return its mean when `self.deterministic` "
                "is True, "
                "which eval() sets"
            )


def _first_random(equation: jcore.JaxprEqn) -> jcore.JaxprEqn | None:
    if equation.primitive.name in _RANDOM_PRIMITIVES:
        return equation
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            body = item.jaxpr if isinstance(item, jcore.ClosedJaxpr) else item
            if isinstance(body, jcore.Jaxpr):
                for inner in body.eqns:
                    found = _first_random(inner)
                    if found is not None:
                        return found
    return None


def _refuse_hidden_state(used: list[bool], changed: list[bool], copy: NetworkCopy) -> None:
    paths = [
        ".".join(_variable_path(path))
        for path, _ in jax.tree_util.tree_flatten_with_path(copy.state)[0]
    ]
    hidden = [p for p, u, c in zip(paths, used, changed, strict=True) if u and c]
    if hidden:
        raise HiddenStateError(
            f"the step rewrites the Variable '{hidden[0]}' and the action depends on it: this "
            "state "
            "would be lost in an exported step. Return it in the carry (initialize_state, "
            "next_state) "
            "instead of writing it to the module"
        )


def _variable_path(path: Any) -> list[str]:
    keys = [
        getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", ""))) for entry in path
    ]
    return [str(key) for key in keys if str(key) != "value"]


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


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
