"""Find who takes a delay's buffer or pointer past its delay line, in a recorded step."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend import core as jcore

from export.passes.rewrite import is_var
from nnx_ppo.networks import delay_line

_FILE = delay_line.__file__
_WRITES = ("push", "advance")


def first_reader(closed: jcore.ClosedJaxpr, inputs: Sequence[int]) -> jcore.JaxprEqn | None:
    """Return the first operation on a buffer or pointer that no delay line does.

    What a delay line reads is a value like any other, what it writes is the next buffer or pointer.
    A call into a function of its own counts as an operation on what it is given.

    Args:
        closed: A step as it was recorded.
        inputs: The positions of buffers and pointers among its inputs.
    """
    held = {closed.jaxpr.invars[index] for index in inputs}
    for equation in closed.jaxpr.eqns:
        method = _method_of_delay_line(equation)
        if method is None and any(is_var(atom) and atom in held for atom in equation.invars):
            return equation
        if method in _WRITES:
            held.update(equation.outvars)
    return None


def _method_of_delay_line(equation: jcore.JaxprEqn) -> str | None:
    recorded = equation.source_info.traceback
    methods = [
        frame.function_name.rpartition(".")[-1]
        for frame in (recorded.frames if recorded is not None else ())
        if frame.file_name == _FILE
    ]
    # The innermost frame comes first, and a method may have helpers.
    return methods[-1] if methods else None
