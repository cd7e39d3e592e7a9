"""Rules for branches and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from jax.extend import core as jcore

from export.lowering.elementwise import select
from export.lowering.registry import RULES, NotLowerable

# Longer scans become a loop; shorter ones are written out, which every runtime executes faster.
_UNROLLED_STEPS = 16


@RULES.register("cond")
def _cond(lowering: Any, equation: Any, index: Any, *operands: Any) -> Any:
    branches = equation.params["branches"]
    if any(branch.effects for branch in branches):
        raise NotLowerable("a branch with side effects")
    # Both branches are pure and cheap to run; the chosen values are selected afterwards, which
    # needs no control flow in the runtime and works for branches of any depth.
    results = [lowering.run(branch, operands) for branch in branches]
    last = len(branches) - 1
    number = tf.cast(index, tf.int32)
    number = tf.minimum(tf.maximum(number, 0), last)
    chosen = results[-1]
    for branch in range(last - 1, -1, -1):
        is_this = tf.equal(number, branch)
        chosen = [select(is_this, a, b) for a, b in zip(results[branch], chosen, strict=True)]
    return list(chosen)


@RULES.register("scan")
def _scan(lowering: Any, equation: Any, *inputs: Any) -> Any:
    params = equation.params
    length, body = params["length"], params["jaxpr"]
    n_consts, n_carry = _scan_parts(equation)
    if not isinstance(length, int | np.integer):
        raise NotLowerable("a scan over the batch axis")
    consts = list(inputs[:n_consts])
    carry = list(inputs[n_consts : n_consts + n_carry])
    sequences = inputs[n_consts + n_carry :]
    length = int(length)
    if length > _UNROLLED_STEPS:
        return _scan_loop(lowering, equation, consts, carry, list(sequences), length)
    slices = [tf.unstack(sequence, num=length, axis=0) for sequence in sequences]
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    stacked: list[dict[int, Any]] = [{} for _ in body.jaxpr.outvars[n_carry:]]
    for step in order:
        outputs = lowering.run(body, [*consts, *carry, *(part[step] for part in slices)])
        carry = outputs[:n_carry]
        for collected, value in zip(stacked, outputs[n_carry:], strict=True):
            collected[step] = value
    if length == 0:
        raise NotLowerable("a scan of length 0")
    return [*carry, *(tf.stack([c[i] for i in range(length)], axis=0) for c in stacked)]


def _scan_parts(equation: Any) -> tuple[int, int]:
    """Return how many inputs are constants and carry; the rest is scanned over.

    Read off the shapes, since JAX has changed the parameters that say so: what is scanned over or
    stacked has one axis more outside the body than inside.
    """
    body = equation.params["jaxpr"].jaxpr

    def rank(atom: Any) -> int:
        return len(atom.aval.shape)

    inside = zip(equation.invars, body.invars, strict=True)
    n_scanned = sum(rank(outer) != rank(inner) for outer, inner in inside)
    results = zip(equation.outvars, body.outvars, strict=True)
    n_carry = sum(rank(outer) == rank(inner) for outer, inner in results)
    return len(equation.invars) - n_scanned - n_carry, n_carry


def _scan_loop(
    lowering: Any, equation: Any, consts: Any, carry: Any, sequences: Any, length: int
) -> list[Any]:
    params = equation.params
    body: jcore.ClosedJaxpr = params["jaxpr"]
    n_carry = len(carry)
    output_avals = [atom.aval for atom in body.jaxpr.outvars[n_carry:]]
    buffers = [
        tf.zeros(lowering.exact_shape((length, *aval.shape)), tf.as_dtype(np.dtype(aval.dtype)))
        for aval in output_avals
    ]
    rows = tf.range(length)

    def step(count: Any, carry: Any, buffers: Any) -> Any:
        place = length - 1 - count if params["reverse"] else count
        slices = [tf.gather(sequence, place, axis=0) for sequence in sequences]
        outputs = lowering.run(body, [*consts, *carry, *slices])
        written = []
        for buffer, value in zip(buffers, outputs[n_carry:], strict=True):
            here = tf.reshape(tf.equal(rows, place), [length] + [1] * (buffer.shape.rank - 1))
            written.append(select(here, value[None], buffer))
        return count + 1, outputs[:n_carry], written

    def go_on(count: Any, carry: Any, buffers: Any) -> Any:
        return count < length

    _, carry, buffers = tf.while_loop(
        go_on,
        step,
        (tf.constant(0), list(carry), buffers),
        shape_invariants=(
            tf.TensorShape([]),
            [value.shape for value in carry],
            [buffer.shape for buffer in buffers],
        ),
    )
    return [*carry, *buffers]


@RULES.register("while")
def _while(lowering: Any, equation: Any, *inputs: Any) -> Any:
    params = equation.params
    n_cond, n_body = int(params["cond_nconsts"]), int(params["body_nconsts"])
    cond_consts = inputs[:n_cond]
    body_consts = inputs[n_cond : n_cond + n_body]
    carry = list(inputs[n_cond + n_body :])
    predicate = params["cond_jaxpr"]
    if predicate.jaxpr.outvars[0].aval.shape:
        raise NotLowerable("a while loop with a condition per row (a vmapped loop)")

    def go_on(*state: Any) -> Any:
        return lowering.run(predicate, [*cond_consts, *state])[0]

    def step(*state: Any) -> Any:
        return lowering.run(params["body_jaxpr"], [*body_consts, *state])

    return list(
        tf.while_loop(go_on, step, carry, shape_invariants=[value.shape for value in carry])
    )
