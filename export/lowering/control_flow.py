"""Rules for branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from jax.extend import core as jcore

from export.lowering.elementwise import select
from export.lowering.half_precision import computed_dtype
from export.lowering.registry import RULES, NotLowerable
from export.passes.rewrite import sub_jaxprs

# Longer scans become a loop; shorter ones are written out, which every runtime executes faster.
_UNROLLED_STEPS = 16


@RULES.register("cond")
def _cond(lowering: Any, equation: Any, index: Any, *operands: Any) -> Any:
    branches = equation.params["branches"]
    if any(branch.effects for branch in branches):
        raise NotLowerable("a branch with side effects")
    last = len(branches) - 1
    number = tf.cast(index, tf.int32)
    number = tf.minimum(tf.maximum(number, 0), last)
    if any(_has_loop(branch.jaxpr) for branch in branches):
        # A loop that is not chosen may not end, so it must not run.
        return _run_one(lowering, branches, number, operands)
    # Both branches are pure and cheap to run; the chosen values are selected afterwards, which
    # needs no control flow in the runtime and works for branches of any depth.
    results = [lowering.run(branch, operands) for branch in branches]
    chosen = results[-1]
    for branch in range(last - 1, -1, -1):
        is_this = tf.equal(number, branch)
        chosen = [select(is_this, a, b) for a, b in zip(results[branch], chosen, strict=True)]
    return list(chosen)


def _has_loop(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name == "while"
        or any(_has_loop(getattr(body, "jaxpr", body)) for body in sub_jaxprs(equation))
        for equation in jaxpr.eqns
    )


def _run_one(lowering: Any, branches: Any, number: Any, operands: Any, first: int = 0) -> list[Any]:
    branch = branches[first]

    def run_first() -> list[Any]:
        outputs = lowering.run(branch, operands)
        return [
            tf.identity(_shaped(value, atom.aval))
            for value, atom in zip(outputs, branch.jaxpr.outvars, strict=True)
        ]

    if first == len(branches) - 1:
        return run_first()
    chosen = tf.cond(
        tf.equal(number, first),
        run_first,
        lambda: _run_one(lowering, branches, number, operands, first + 1),
    )
    # TensorFlow unpacks a list of one.
    return list(chosen) if isinstance(chosen, list | tuple) else [chosen]


@RULES.register("scan")
def _scan(lowering: Any, equation: Any, *inputs: Any) -> Any:
    params = equation.params
    length, body = params["length"], params["jaxpr"]
    n_consts, n_carry = _scan_parts(equation)
    consts = list(inputs[:n_consts])
    carry = list(inputs[n_consts : n_consts + n_carry])
    sequences = list(inputs[n_consts + n_carry :])
    if not isinstance(length, int | np.integer) or not 0 < length <= _UNROLLED_STEPS:
        return _scan_loop(lowering, equation, consts, carry, sequences, length)
    length = int(length)
    slices = [tf.unstack(sequence, num=length, axis=0) for sequence in sequences]
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    stacked: list[dict[int, Any]] = [{} for _ in body.jaxpr.outvars[n_carry:]]
    for step in order:
        outputs = lowering.run(body, [*consts, *carry, *(part[step] for part in slices)])
        carry = outputs[:n_carry]
        for collected, value in zip(stacked, outputs[n_carry:], strict=True):
            collected[step] = value
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
    lowering: Any, equation: Any, consts: Any, carry: Any, sequences: Any, length: Any
) -> list[Any]:
    params = equation.params
    body: jcore.ClosedJaxpr = params["jaxpr"]
    n_carry = len(carry)
    buffer_avals = [variable.aval for variable in equation.outvars[n_carry:]]
    buffers = [
        tf.zeros(lowering.exact_shape(aval.shape), computed_dtype(aval.dtype))
        for aval in buffer_avals
    ]
    avals = [*(atom.aval for atom in body.jaxpr.outvars[:n_carry]), *buffer_avals]
    count = lowering.dimension(length)
    rows = tf.range(count)

    def step(number: Any, *state: Any) -> Any:
        place = count - 1 - number if params["reverse"] else number
        slices = [tf.gather(sequence, place, axis=0) for sequence in sequences]
        outputs = lowering.run(body, [*consts, *state[:n_carry], *slices])
        written = []
        for buffer, value in zip(state[n_carry:], outputs[n_carry:], strict=True):
            here = tf.reshape(tf.equal(rows, place), [-1] + [1] * (buffer.shape.rank - 1))
            written.append(select(here, value[None], buffer))
        return number + 1, *_all_shaped([*outputs[:n_carry], *written], avals)

    _, *results = tf.while_loop(
        lambda number, *state: number < count,
        step,
        (tf.constant(0), *_all_shaped([*carry, *buffers], avals)),
        shape_invariants=(tf.TensorShape([]), *(_static_shape(aval) for aval in avals)),
    )
    return results


@RULES.register("while")
def _while(lowering: Any, equation: Any, *inputs: Any) -> Any:
    params = equation.params
    n_cond, n_body = int(params["cond_nconsts"]), int(params["body_nconsts"])
    cond_consts = inputs[:n_cond]
    body_consts = inputs[n_cond : n_cond + n_body]
    avals = [variable.aval for variable in equation.outvars]
    carry = _all_shaped(inputs[n_cond + n_body :], avals)
    predicate = params["cond_jaxpr"]
    n_batch = len(predicate.jaxpr.outvars[0].aval.shape)

    def goes_on(state: Sequence[Any]) -> Any:
        return lowering.run(predicate, [*cond_consts, *state])[0]

    def any_goes_on(*state: Any) -> Any:
        rows = goes_on(state)
        return tf.reduce_max(tf.cast(rows, tf.int32)) > 0 if n_batch else rows

    def step(*state: Any) -> Any:
        after = lowering.run(params["body_jaxpr"], [*body_consts, *state])
        if n_batch:
            # Rows of a vmapped loop that have ended stay as they are.
            rows = goes_on(state)
            after = [
                select(_with_trailing_axes(lowering, rows, predicate, aval), new, old)
                for new, old, aval in zip(after, state, avals, strict=True)
            ]
        return _all_shaped(after, avals)

    return list(
        tf.while_loop(
            any_goes_on, step, carry, shape_invariants=[_static_shape(aval) for aval in avals]
        )
    )


def _with_trailing_axes(lowering: Any, rows: Any, predicate: Any, aval: Any) -> Any:
    own = predicate.jaxpr.outvars[0].aval.shape
    return tf.reshape(rows, lowering.shape([*own, *([1] * (len(aval.shape) - len(own)))]))


def _static_shape(aval: Any) -> tf.TensorShape:
    """Return the shape as far as it is known at export."""
    return tf.TensorShape(
        [int(size) if isinstance(size, int | np.integer) else None for size in aval.shape]
    )


def _shaped(value: Any, aval: Any) -> Any:
    """Tell TensorFlow the shape of a value, which it cannot always infer."""
    value.set_shape(_static_shape(aval))
    return value


def _all_shaped(values: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    return [_shaped(value, aval) for value, aval in zip(values, avals, strict=True)]
