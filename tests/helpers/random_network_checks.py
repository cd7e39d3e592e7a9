"""What must hold for every described network, and how a failing one is reported."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jp
import numpy as np
import random_networks
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax.extend import core as jcore

from export import export_policy, verify_parity
from export.delay_layout import align
from export.network_copy import NetworkCopy, export_copy, fresh_rows, reference_copy
from export.parity_report import ParityReport
from export.passes.pack_delays import PackedDelays, pack_delays
from export.passes.pipeline import (
    AFTER_PACKING,
    BEFORE_PRUNING,
    FOR_OWN_RULES,
    SWITCHABLE,
    apply_passes,
)
from export.passes.rewrite import is_var
from export.passes.take_slots import take_slot_p
from export.port_errors import measure
from export.prng_keys import is_key
from export.trace import TracedStep, trace_step

ARTEFACTS = ("stablehlo", "saved_model", "saved_model_xla", "onnx")
PARITY_STEPS = 12
BATCH_SIZES = (1, 3)
QUIET = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
)
"""Networks take seconds, which Hypothesis would call slow, and every run draws the same ones."""
_ROUNDING = 1e-5
"""Absolute, and relative to the reference, as for the formats that our own rules write."""

_OWN_PRIMITIVES = {
    take_slot_p: lambda x, *, axis, index: jax.lax.index_in_dim(x, index, axis, keepdims=False)
}


class NetworkFails(AssertionError):
    """A described network does not do what it must."""


def report_as_python(described: Any, check: str, message: str) -> NetworkFails:
    """Return an error that says how to see the failure again, in a shell at the repository."""
    return NetworkFails(
        f"{message}\nTo see it again, with tests/helpers on the path:\n\n"
        "from random_networks import *\n"
        f"from random_network_checks import {check}\n\n"
        f"{check}({described!r})\n"
    )


def check_distinct(
    described: st.SearchStrategy,
    check: Callable[[Any], Any],
    *,
    count: int,
    portion: int = 0,
    portions: int = 1,
) -> set[str]:
    """Draw descriptions until `count` different ones have passed; returns these as text.

    Two differ if they do so in more than their weights. Each belongs to one portion, by a digest,
    so that no two portions compare the same one.

    Raises:
        NetworkFails: One does not pass; it is the smallest that Hypothesis could make of it.
    """
    passed: set[str] = set()
    has_failed = False

    @hypothesis.seed(portion)
    @settings(QUIET, max_examples=3 * count * portions)
    @given(described)
    def run(one: Any) -> None:
        nonlocal has_failed
        text = repr(dataclasses.replace(one, seed=0))
        another = int(hashlib.sha256(text.encode()).hexdigest(), 16) % portions != portion
        # Where a failure is made smaller, everything runs.
        if not has_failed and (another or text in passed or len(passed) == count):
            return
        try:
            check(one)
        except Exception:
            has_failed = True
            raise
        passed.add(text)

    run()
    return passed


def check_parity(described: Any, directory: Path | None = None) -> ParityReport:
    """Export a network in all formats and compare each with it, over steps with resets.

    Raises:
        NetworkFails: What differs, and Python that shows it.
    """
    with tempfile.TemporaryDirectory(dir=directory) as parent:
        network, observation = random_networks.build(described)
        try:
            bundle = export_policy(network, observation, Path(parent) / "policy")
        except Exception as error:
            what = f"the export fails with {type(error).__name__}: {error}"
            raise report_as_python(described, "check_parity", what) from error
        report = verify_parity(
            bundle,
            network,
            observations=random_networks.observations(described, PARITY_STEPS, max(BATCH_SIZES)),
            steps=PARITY_STEPS,
            batch_sizes=BATCH_SIZES,
            write=False,
        )
    compared = {(c.runtime, c.mode, c.batch_size) for c in report.comparisons}
    assert len(compared) == len(ARTEFACTS) * 2 * len(BATCH_SIZES)
    failed = [
        f"{c.runtime}, {c.mode}, batch {c.batch_size}: {port.name} is off by {port.max_abs_error} "
        f"at step {port.worst_step}, row {port.worst_row}"
        for c in report.comparisons
        for port in c.ports
        if port.violations
    ]
    if failed or not report.passed:
        raise report_as_python(described, "check_parity", "\n".join(failed))
    return report


def check_passes(described: Any, *, rows: int = 4, steps: int = 6) -> int:
    """Compare the step without each pass, and with each alone, with the step as it was recorded.

    The recorded step runs over a trajectory with resets. Every form of it is then given the carry
    and observation of all these steps at once, as so many rows.

    Returns:
        How many forms were compared.

    Raises:
        NetworkFails: What differs, and Python that shows it.
    """
    network, observation = random_networks.build(described)
    copy = export_copy(network)
    carry = copy.initialize_state(1)
    carry_rows = jax.tree.unflatten(jax.tree.structure(carry), fresh_rows(copy))
    given = random_networks.observations(described, steps, rows)
    trace = functools.partial(trace_step, copy, carry_rows, observation)
    inputs, expected = _run(trace(batch_size=rows), copy, jax.tree.leaves(given), rows, steps)
    layout = align(reference_copy(network).initialize_state(1), carry)
    buffers = {leaf.exported_index for leaf in layout if leaf.source == "delay_buffer"}
    forms = {"with all passes": (), "without passes": SWITCHABLE}
    for name in SWITCHABLE:
        forms[f"without {name}"] = (name,)
        forms[f"with {name} alone"] = tuple(other for other in SWITCHABLE if other != name)
    in_trace = {one.__name__ for one in BEFORE_PRUNING}
    traced: dict[frozenset[str], TracedStep] = {}
    for form, disabled in forms.items():
        key = frozenset(in_trace.intersection(disabled))
        if key not in traced:
            traced[key] = trace(batch_size=rows * steps, disabled_passes=tuple(key))
        step = traced[key]
        kept = [index for index, keep in enumerate(step.kept_carry) if keep]
        n_action = len(jax.tree.leaves(step.action))
        positions = [place for place, index in enumerate(kept) if index in buffers]
        closed, packed = pack_delays(
            step.closed,
            [] if pack_delays.__name__ in disabled else positions,
            n_carry=len(kept),
            n_actions=n_action,
        )
        closed = apply_passes((*AFTER_PACKING, *FOR_OWN_RULES), closed, disabled)
        before = _pack([inputs[index] for index in kept], packed)
        after = _pack([expected[n_action + index] for index in kept], packed)
        observed = inputs[len(step.kept_carry) :]
        before += [v for v, keep in zip(observed, step.kept_observation, strict=True) if keep]
        references = expected[:n_action] + after
        names = [f"action leaf {index}" for index in range(n_action)]
        names += [f"next carry leaf {index}" for index in range(len(after))]
        outputs = evaluate(closed, before)
        for name, actual, reference in zip(names, outputs, references, strict=True):
            found = measure(name, np.asarray(actual), reference, _ROUNDING)
            if found.violations:
                message = f"{form}, {name} is off by {found.max_abs_error}"
                raise report_as_python(described, "check_passes", message)
    return len(forms)


def _pack(carry: list[Any], packed: Sequence[PackedDelays]) -> list[Any]:
    """Return the leaves of a carry as a step has them whose buffers are packed."""
    gone = {position for entry in packed for position in entry.members}
    result = [leaf for position, leaf in enumerate(carry) if position not in gone]
    for entry in packed:
        whole = np.zeros((carry[entry.members[0]].shape[0], entry.width), entry.dtype)
        for position, columns in zip(entry.members, entry.slots, strict=True):
            for slot, first in enumerate(columns):
                values = carry[position][:, slot].reshape(whole.shape[0], -1)
                whole[:, first : first + values.shape[1]] = values
        result.append(whole)
    return result


def _run(
    step: TracedStep, copy: NetworkCopy, observed: list[Any], rows: int, steps: int
) -> tuple[list[Any], list[Any]]:
    """Return inputs (carry, observation) and outputs (action, carry) as `[steps * rows, ...]`.

    Leaves that are no numbers, such as random keys, are None; no form of a step keeps them.
    """
    raw = jax.jit(jcore.jaxpr_as_fun(step.unsimplified))
    variables = jax.tree.leaves(copy.state)
    fresh = jax.tree.leaves(copy.initialize_state(rows))
    n_action, n_carry = len(jax.tree.leaves(step.action)), len(fresh)
    carry, before, after = fresh, [], []
    for t in range(steps):
        reset = np.zeros(rows, bool)
        reset[:: {steps // 3: 2, 2 * steps // 3: 1}.get(t, rows + 1)] = t > 0
        carry = [_chosen(reset, *pair) for pair in zip(fresh, carry, strict=True)]
        outputs = raw(*variables, *carry, *(leaf[t] for leaf in observed))
        before.append([*carry, *(leaf[t] for leaf in observed)])
        after.append(outputs[: n_action + n_carry])
        carry = outputs[n_action : n_action + n_carry]
    return _joined(before), _joined(after)


def _chosen(rows: np.ndarray, fresh: Any, old: Any) -> Any:
    return jp.where(rows.reshape(rows.shape + (1,) * (old.ndim - 1)), fresh, old)


def _joined(recorded: list[list[Any]]) -> list[Any]:
    return [
        None if is_key(leaves[0]) else np.concatenate([np.asarray(leaf) for leaf in leaves])
        for leaves in zip(*recorded, strict=True)
    ]


def evaluate(closed: jcore.ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of a jaxpr without calls, operation by operation."""
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return values[atom] if is_var(atom) else atom.val

    for equation in closed.jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        own = _OWN_PRIMITIVES.get(equation.primitive)
        if own is not None:
            results = own(*operands, **equation.params)
        else:
            results = equation.primitive.bind(*operands, **equation.params)
        if not equation.primitive.multiple_results:
            results = [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]
