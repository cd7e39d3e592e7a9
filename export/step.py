"""The exported step: one pure function with named ports, and all that a bundle says about it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jcore

from export.delay_check import refuse_ring_readers
from export.delay_failures import failures_explained
from export.delay_layout import CarryLeaf, align
from export.errors import NetworkError, ObservationSpecError
from export.extra_outputs import needs_recording
from export.network_copy import (
    NetworkCopy,
    export_copy,
    fresh_rows,
    reference_copy,
    reset_behaviour,
)
from export.packed_carry import PackedCarry
from export.passes import pack_delays
from export.passes.pipeline import AFTER_PACKING, FOR_OWN_RULES, apply_passes, checked_passes
from export.prng_keys import is_key
from export.structure import (
    Path,
    describe,
    leaf_dtype,
    leaf_names,
    paths_of,
    require_importable_classes,
)
from export.trace import TracedStep, trace_step
from export.trajectory import GOLDEN_ROWS
from serving import manifest as bundle_format
from serving import tree as serving_tree


@dataclasses.dataclass(frozen=True)
class Step:
    """`step(carry, observation) -> (action, next_carry, extras)` over named, batched tensors."""

    closed: jcore.ClosedJaxpr
    """Inputs: carry ports, observation ports, and the reset port if there is one; outputs: action,
    next carry, extra outputs."""
    batch_size: int | None
    observation_tree: Any
    """`serving.tree` node; a leaf that the action does not need has no port."""
    action_tree: Any
    observation_ports: list[bundle_format.Port]
    carry_ports: list[bundle_format.CarryPort]
    action_ports: list[bundle_format.Port]
    extra_output_ports: list[bundle_format.Port]
    network_carry: bundle_format.NetworkCarry
    initial_carry: dict[str, np.ndarray]
    """Carry port → array without a batch axis."""
    reference: NetworkCopy
    """The network as the user trained it, in evaluation mode."""
    disabled_passes: tuple[str, ...]
    """Names of the simplifications that were left out."""
    unpacked: jcore.ClosedJaxpr
    """The step before its delay buffers were packed: each has an input and an output of its own."""
    unpacked_carry: list[str]
    """For each carry input of `unpacked` the port that holds it."""
    reset_port: bundle_format.Port | None = None
    """The last input, of a step that resets rows itself."""

    @functools.cached_property
    def portable(self) -> jcore.ClosedJaxpr:
        """The same step for the formats that are written by our own rules: simplified further."""
        return apply_passes(FOR_OWN_RULES, self.closed, self.disabled_passes)

    @property
    def inputs(self) -> list[bundle_format.Port]:
        """Ports of the inputs in order."""
        reset = [] if self.reset_port is None else [self.reset_port]
        return [*self.carry_ports, *self.observation_ports, *reset]

    @property
    def output_names(self) -> list[str]:
        """Tensor names of the outputs in order."""
        return [
            *(port.name for port in self.action_ports),
            *(port.next_name for port in self.carry_ports),
            *(port.name for port in self.extra_output_ports),
        ]

    @property
    def output_ports(self) -> list[bundle_format.Port]:
        """Ports of the outputs in order, the carry's by the shape and dtype it comes in with."""
        return [*self.action_ports, *self.carry_ports, *self.extra_output_ports]

    def function(self) -> Callable[..., list[jax.Array]]:
        """Return the step as a JAX function of its flat inputs."""
        return jcore.jaxpr_as_fun(self.closed)

    def input_specs(self) -> list[jax.ShapeDtypeStruct]:
        """Return shape and dtype of each input, with the batch symbolic or fixed as traced."""
        return [
            jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)
            for variable in self.closed.jaxpr.invars
        ]


def build_step(
    network: Any,
    observation: Any,
    *,
    batch_size: int | None = None,
    extra_outputs: Sequence[str] = (),
    disabled_passes: Sequence[str] = (),
) -> Step:
    """Build the exported step of `network`, which stays as it is.

    Args:
        network: A `flax.nnx.Module` with `initialize_state`, usually a `StatefulModule`.
        observation: One example without a batch axis, or the same tree of `jax.ShapeDtypeStruct`.
        batch_size: A fixed number of environments, or None for any.
        extra_outputs: Names of further outputs, see `export.extra_outputs`.
        disabled_passes: Names of simplifications to leave out, from
            `export.passes.pipeline.SWITCHABLE`.

    Raises:
        ExportError: The network or the observation does not allow an export; the message says why.
    """
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ObservationSpecError(
            f"batch_size must be None or an integer of at least 1, got {batch_size!r}"
        )
    observation = observation_spec(observation)
    require_importable_classes(observation, "observation")
    disabled = checked_passes(disabled_passes)
    reference = reference_copy(network)
    copy = export_copy(network, record=needs_recording(extra_outputs))
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "extra_outputs": extra_outputs,
        "disabled_passes": disabled,
    }
    with failures_explained(reference, observation, **options):
        # Of as many rows as the golden trajectory has: each number is compiled once.
        fresh = copy.initialize_state(GOLDEN_ROWS)
        layout = align(reference.initialize_state(GOLDEN_ROWS), fresh)
        rows = jax.tree.unflatten(jax.tree.structure(fresh), fresh_rows(copy))
        traced = trace_step(copy, rows, observation, **options)
    refuse_ring_readers(reference, copy, layout, observation, batch_size, traced.unsimplified)
    fresh_rows(copy, traced.kept_carry)
    leaf_ports = _carry_ports(copy, rows, layout, traced)
    closed, carry = _packed(traced, leaf_ports, rows, disabled)
    observation_ports, observation_tree = _ports("obs", observation, traced.kept_observation)
    action_ports, action_tree = _ports("action", traced.action, None)
    extra_ports = [_port(n, traced.extra_paths[n], leaf) for n, leaf in traced.extras.items()]
    for port in [*observation_ports, *leaf_ports, *action_ports, *extra_ports]:
        _refuse_empty(port)
    return Step(
        closed=closed,
        disabled_passes=disabled,
        batch_size=batch_size,
        observation_tree=observation_tree,
        action_tree=action_tree,
        observation_ports=observation_ports,
        carry_ports=carry.ports,
        action_ports=action_ports,
        extra_output_ports=extra_ports,
        network_carry=_network_carry(reference, layout, traced.kept_carry, carry),
        initial_carry=carry.initial,
        reference=reference,
        unpacked=traced.closed,
        unpacked_carry=[name for name, _ in carry.places],
    )


def _packed(
    traced: TracedStep,
    leaf_ports: list[bundle_format.CarryPort],
    rows: Any,
    disabled: Sequence[str],
) -> tuple[jcore.ClosedJaxpr, PackedCarry]:
    """Return the step with its delay buffers packed, and the carry that it has then."""
    buffers = [
        index
        for index, port in enumerate(leaf_ports)
        if port.kind == "delay_buffer" and port.reset == "initial"
    ]
    closed, packed = pack_delays(
        traced.closed,
        [] if pack_delays.__name__ in disabled else buffers,
        n_carry=len(leaf_ports),
        n_actions=len(jax.tree.leaves(traced.action)),
    )
    kept = zip(jax.tree.leaves(rows), traced.kept_carry, strict=True)
    carry = PackedCarry(leaf_ports, [np.asarray(row) for row, keep in kept if keep], packed)
    return apply_passes(AFTER_PACKING, closed, disabled), carry


def observation_spec(observation: Any) -> Any:
    """Return the tree of `jax.ShapeDtypeStruct` of an example observation.

    Raises:
        ObservationSpecError: No leaves, or a leaf that is not numeric.
    """
    names = leaf_names("obs", paths_of(observation, "observation"))
    leaves, treedef = jax.tree.flatten(observation)
    if not leaves:
        raise ObservationSpecError(
            "the example observation has no leaves; pass one observation as the environment "
            "gives it"
        )
    specs = []
    for name, leaf in zip(names, leaves, strict=True):
        try:
            dtype = jax.dtypes.canonicalize_dtype(leaf_dtype(leaf))
        except TypeError as error:
            raise ObservationSpecError(
                f"{name} is {type(leaf).__name__}, which is not numeric; expected an array of "
                "floats, integers or bools"
            ) from error
        if dtype.kind not in "fiub":
            raise ObservationSpecError(
                f"{name} has dtype {dtype}; expected floats, integers or bools"
            )
        specs.append(jax.ShapeDtypeStruct(tuple(np.shape(leaf)), dtype))
    return jax.tree.unflatten(treedef, specs)


def _ports(role: str, tree: Any, kept: list[bool] | None) -> tuple[list[Any], Any]:
    """Return the ports of the kept leaves and the description of the whole tree."""
    paths = paths_of(tree, role)
    names = dict(zip(paths, leaf_names(role, paths), strict=True))
    flags = dict(zip(paths, kept if kept is not None else [True] * len(paths), strict=True))
    ports = [
        _port(names[path], path, leaf)
        for path, leaf in zip(paths, jax.tree.leaves(tree), strict=True)
        if flags[path]
    ]

    def make_leaf(path: Path, leaf: Any) -> serving_tree.Leaf:
        name = names[path] if flags[path] else None
        return serving_tree.Leaf(port=name, shape=list(leaf.shape), dtype=str(leaf.dtype))

    return ports, describe(tree, role, make_leaf)


def _refuse_empty(port: bundle_format.Port) -> None:
    if 0 in port.shape:
        raise NetworkError(
            f"{port.name} has the shape {port.shape}, so it holds no element, which a format "
            "cannot express. Leave it out of the tree, or give it at least one element"
        )


def _port(name: str, path: Path, leaf: Any) -> bundle_format.Port:
    return bundle_format.Port(
        name=name, path=list(path), shape=[int(n) for n in leaf.shape], dtype=str(leaf.dtype)
    )


def _carry_ports(
    copy: NetworkCopy, rows: Any, layout: list[CarryLeaf], traced: TracedStep
) -> list[bundle_format.CarryPort]:
    paths = paths_of(rows, "carry")
    kept = traced.kept_carry
    selected = [path for path, keep in zip(paths, kept, strict=True) if keep]
    names = iter(leaf_names("carry", selected))
    resets = reset_behaviour(copy, kept)
    buffers = {leaf.exported_index for leaf in layout if leaf.source == "delay_buffer"}
    ports = []
    for index, (path, row) in enumerate(zip(paths, jax.tree.leaves(rows), strict=True)):
        if not kept[index]:
            continue
        name = next(names)
        ports.append(
            bundle_format.CarryPort(
                name=name,
                path=list(path),
                shape=[int(n) for n in row.shape],
                dtype=str(row.dtype),
                next_name=f"next_{name}",
                reset="keep" if resets[index] == "keep" else "initial",
                kind="delay_buffer" if index in buffers else "state",
            )
        )
    return ports


def _network_carry(
    reference: NetworkCopy,
    layout: list[CarryLeaf],
    kept: list[bool],
    packed: PackedCarry,
) -> bundle_format.NetworkCarry:
    """Describe the network's own carry and what became of each of its leaves."""
    carry = reference.initialize_state(GOLDEN_ROWS)
    order = [index for index, keep in enumerate(kept) if keep]
    places = dict(zip(order, packed.places, strict=True))
    leaves = []
    for leaf, value in zip(layout, jax.tree.leaves(carry), strict=True):
        port, slots = None, None
        if leaf.exported_index is not None:
            port, slots = places.get(leaf.exported_index, (None, None))
        source = leaf.source if port is not None or leaf.source == "delay_pointer" else "dropped"
        leaves.append(_carry_leaf(source, port, slots, value))
    placed = iter(leaves)

    def make_leaf(path: Path, value: Any) -> serving_tree.Leaf:
        described = next(placed)
        return serving_tree.Leaf(port=described.port, shape=described.shape, dtype=described.dtype)

    return bundle_format.NetworkCarry(tree=describe(carry, "carry", make_leaf), leaves=leaves)


def _carry_leaf(
    source: Any, port: str | None, slots: list[int] | None, value: Any
) -> bundle_format.CarryLeaf:
    """Describe one leaf; a dropped one with the value to put back."""
    key_impl = None
    if is_key(value):
        key_impl = str(jax.random.key_impl(value))
        value = jax.random.key_data(value)
    row = np.asarray(value)[0]
    keep_values = source == "dropped" and bool(np.any(row != 0))
    return bundle_format.CarryLeaf(
        source=source,
        port=port,
        slots=slots,
        fill=[_json_number(item) for item in row.reshape(-1)] if keep_values else None,
        shape=[int(n) for n in row.shape],
        dtype=str(row.dtype),
        key_impl=key_impl,
    )


def _json_number(value: Any) -> Any:
    # JSON has no NaN and no infinities; their names survive and NumPy reads them back.
    number = value.item()
    return number if not isinstance(number, float) or np.isfinite(number) else str(number)
