"""Keep the delay buffers of a step in one array, which is shifted as a whole.

A graph of populations has a buffer for each that is read with a delay. Every one of them is an
input and an output of the step, and is shifted on its own; for small networks that costs more than
the arithmetic. Packed, they are one array `[batch, columns]`: first the slot of one step ago of
every buffer, then that of two steps ago of those that are deep enough, and so on. Within a slot the
shallow buffers come first, so what moves on to the next slot is one range of columns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend import core as jcore

from export.passes.rewrite import (
    constants_of,
    cut_columns,
    is_var,
    rebuild,
    reshaped,
    slice_range,
)


@dataclasses.dataclass(frozen=True)
class PackedDelays:
    """One array that took the place of several buffers."""

    members: list[int]
    """Positions of the buffers among the carry before packing."""
    slots: list[list[int]]
    """For each member, and each of its slots from the newest: the column where its value begins."""
    width: int
    """Number of columns."""
    dtype: np.dtype[Any]


@dataclasses.dataclass(frozen=True)
class _Buffer:
    """A buffer `[batch, depth, *leaf]` that is only read by slot and shifted once."""

    position: int
    variable: Any
    newest: Any
    """What is pushed, `[batch, 1, *leaf]`."""
    source: Any
    """An equation of the module that owns the buffer, for its place in the user's code."""
    reads: list[tuple[int, int]]
    """Places of the equations that read one slot, with the slot; each puts out `[batch, ...]`."""
    writes: list[int]
    """Places of the equations that shift it."""

    @property
    def depth(self) -> int:
        return int(self.variable.aval.shape[1])

    @property
    def leaf(self) -> tuple[int, ...]:
        return tuple(self.variable.aval.shape[2:])

    @property
    def width(self) -> int:
        return math.prod(self.leaf)


def pack_delays(
    closed: jcore.ClosedJaxpr, buffers: Sequence[int], *, n_carry: int, n_actions: int
) -> tuple[jcore.ClosedJaxpr, list[PackedDelays]]:
    """Return a jaxpr that does the same with packed buffers, and how they are packed.

    Args:
        closed: A step from carry and observation to actions, next carry and further outputs.
        buffers: Positions in the carry of the delay buffers in time order.
        n_carry: Number of leaves of the carry, which are the first inputs.
        n_actions: Number of outputs before the next carry.

    Returns:
        The jaxpr, and one entry per packed array, one for each dtype. The carry is now what was not
        packed, in the order it had, then the packed arrays. A buffer that is used in any other way
        stays as it is; so does one that would be alone.
    """
    replaced: dict[int, list[jcore.JaxprEqn]] = {}
    next_carry = closed.jaxpr.outvars[n_actions : n_actions + n_carry]
    groups: dict[Any, list[_Buffer]] = {}
    for position in buffers:
        buffer = _recognised(closed, position, next_carry[position])
        if buffer is not None:
            groups.setdefault(buffer.variable.aval.dtype, []).append(buffer)
    packed, wholes, shifted = [], [], []
    tail: list[Any] = []
    for group in groups.values():
        if len(group) < 2:
            continue
        group.sort(key=lambda buffer: buffer.depth)
        slots, width = _columns(group)
        aval = group[0].variable.aval
        whole: Any = jcore.Var(ShapedArray((aval.shape[0], width), aval.dtype))
        for buffer, columns in zip(group, slots, strict=True):
            replaced |= _reads_of(whole, buffer, columns, closed.jaxpr.eqns)
            replaced |= {place: [] for place in buffer.writes}
        more, output = _shift(whole, group, slots, group[0].source)
        tail += more
        wholes.append(whole)
        shifted.append(output)
        packed.append(PackedDelays([b.position for b in group], slots, width, np.dtype(aval.dtype)))
    if not packed:
        return closed, []
    gone = {position for entry in packed for position in entry.members}
    stay = [position for position in range(n_carry) if position not in gone]
    inputs, outputs = closed.jaxpr.invars, closed.jaxpr.outvars
    equations = [
        equation
        for place, old in enumerate(closed.jaxpr.eqns)
        for equation in replaced.get(place, [old])
    ]
    result = rebuild(
        closed,
        [*equations, *tail],
        [
            *outputs[:n_actions],
            *(next_carry[position] for position in stay),
            *shifted,
            *outputs[n_actions + n_carry :],
        ],
        constants_of(closed),
        inputs=[*(inputs[position] for position in stay), *wholes, *inputs[n_carry:]],
    )
    return result, packed


def _recognised(closed: jcore.ClosedJaxpr, position: int, after: Any) -> _Buffer | None:
    """Return the buffer at a position of the carry if it is used as `TimeOrderedDelayLine` does."""
    variable = closed.jaxpr.invars[position]
    shape = variable.aval.shape
    if len(shape) < 2 or not math.prod(shape[1:]) or _count(closed.jaxpr.outvars, after) != 1:
        return None
    writes = _writes(closed, variable, after)
    if writes is None or _count(closed.jaxpr.outvars, variable):
        return None
    newest, places = writes
    reads = []
    for place, equation in enumerate(closed.jaxpr.eqns):
        if place in places or not _count(equation.invars, variable):
            continue
        slot = _slot_read(equation, variable)
        if slot is None:
            return None
        reads.append((place, slot))
    return _Buffer(position, variable, newest, _producer(closed, after), reads, places)


def _count(atoms: Sequence[Any], variable: Any) -> int:
    return sum(atom is variable for atom in atoms)


def _producer(closed: jcore.ClosedJaxpr, variable: Any) -> Any:
    return next(e for e in closed.jaxpr.eqns if _count(e.outvars, variable))


def _writes(closed: jcore.ClosedJaxpr, variable: Any, after: Any) -> tuple[Any, list[int]] | None:
    """Return what is pushed, and the places of the equations that shift the buffer."""
    depth = variable.aval.shape[1]
    producers = {v: i for i, e in enumerate(closed.jaxpr.eqns) for v in e.outvars}
    place = producers.get(after) if is_var(after) else None
    if place is None or _readers(closed, after):
        return None
    if depth == 1:
        # What is pushed is all there is: the equation that made it a slot puts out the buffer.
        return closed.jaxpr.eqns[place].outvars[0], []
    equation = closed.jaxpr.eqns[place]
    if equation.primitive.name != "concatenate" or equation.params["dimension"] != 1:
        return None
    if len(equation.invars) != 2 or equation.invars[0].aval.shape[1] != 1:
        return None
    newest, older = equation.invars
    cut = producers.get(older) if is_var(older) else None
    if cut is None or len(_readers(closed, older)) != 1 or _count(closed.jaxpr.outvars, older):
        return None
    bounds = _slots(closed.jaxpr.eqns[cut], variable)
    return (newest, [cut, place]) if bounds == (0, depth - 1) else None


def _readers(closed: jcore.ClosedJaxpr, variable: Any) -> list[int]:
    return [i for i, e in enumerate(closed.jaxpr.eqns) if _count(e.invars, variable)]


def _slots(equation: jcore.JaxprEqn, variable: Any) -> tuple[int, int] | None:
    """Return first slot and end if the equation takes a range of slots of `variable`."""
    reads = bool(equation.invars) and equation.invars[0] is variable
    return slice_range(equation, 1) if reads else None


def _slot_read(equation: jcore.JaxprEqn, variable: Any) -> int | None:
    """Return the slot if the equation reads one of `variable`, with or without its axis."""
    if variable.aval.shape[1] == 1 and equation.primitive.name in ("squeeze", "reshape"):
        value: Any = equation.outvars[0].aval
        shape = tuple(value.shape)
        return 0 if shape == (variable.aval.shape[0], *variable.aval.shape[2:]) else None
    bounds = _slots(equation, variable)
    return bounds[0] if bounds is not None and bounds[1] == bounds[0] + 1 else None


def _columns(group: list[_Buffer]) -> tuple[list[list[int]], int]:
    """Return where each slot of each buffer begins, slot by slot, and how many columns there are.

    `group` is in ascending order of depth.
    """
    slots: list[list[int]] = [[] for _ in group]
    column = 0
    for slot in range(group[-1].depth):
        for index, buffer in enumerate(group):
            if buffer.depth > slot:
                slots[index].append(column)
                column += buffer.width
    return slots, column


def _reads_of(
    whole: Any, buffer: _Buffer, columns: list[int], equations: Sequence[jcore.JaxprEqn]
) -> dict[int, list[jcore.JaxprEqn]]:
    """Return what takes the place of the equations that read the buffer: the same from `whole`."""
    replaced = {}
    for place, slot in buffer.reads:
        old = equations[place]
        cut, value = cut_columns(old, whole, columns[slot], columns[slot] + buffer.width)
        replaced[place] = [cut, reshaped(old, value, old.outvars[0])]
    return replaced


def _shift(
    whole: Any, group: list[_Buffer], slots: list[list[int]], template: Any
) -> tuple[list[Any], Any]:
    """Return the equations that put out the next `whole`, and their result."""
    made: list[Any] = []
    parts: list[Any] = []
    for buffer in group:
        flat: Any = jcore.Var(ShapedArray((whole.aval.shape[0], buffer.width), whole.aval.dtype))
        made.append(reshaped(template, buffer.newest, flat))
        parts.append(flat)
    for first, end in _moved(group, slots):
        cut, value = cut_columns(template, whole, first, end)
        made.append(cut)
        parts.append(value)
    result = jcore.Var(whole.aval)
    made.append(
        template.replace(
            primitive=lax.concatenate_p, params={"dimension": 1}, invars=parts, outvars=[result]
        )
    )
    return made, result


def _moved(group: list[_Buffer], slots: list[list[int]]) -> list[tuple[int, int]]:
    """Return the ranges of columns that move on to the next slot, in order, neighbours as one."""
    ranges: list[tuple[int, int]] = []
    for slot in range(group[-1].depth - 1):
        for index, buffer in enumerate(group):
            if buffer.depth <= slot + 1:
                continue
            first, end = slots[index][slot], slots[index][slot] + buffer.width
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((first, end))
    return ranges
