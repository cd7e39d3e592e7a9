"""Walk a jaxpr and build TensorFlow operations from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from jax.extend import core as jcore

from export.errors import UnsupportedOperationError
from export.half_dtypes import is_half
from export.lowering.half_precision import as_computed, as_half, computed_dtype, rounded
from export.lowering.registry import RULES, NotLowerable
from export.module_scopes import module_path_of, source_line_of
from export.passes.rewrite import is_static_shape, is_var

# What TensorFlow raises for operands that an operation is not made for.
_TENSORFLOW_REFUSES = (TypeError, ValueError, OverflowError, tf.errors.OpError)


class Lowering:
    """Turns equations into TensorFlow operations, for one batch size or any.

    Args:
        batch: The batch size: an int, or a scalar int32 tensor where the jaxpr's is symbolic.
        product: Multiplies `[..., n, k]` by `[..., k, m]`.
    """

    def __init__(self, batch: Any, product: Callable[[Any, Any], Any] = tf.matmul):
        self.batch = batch
        self.product = product

    def run_step(self, closed: jcore.ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of `closed` at `inputs`, each in the dtype that the jaxpr says."""
        held = [
            tf.cast(value, computed_dtype(variable.aval.dtype))
            for variable, value in zip(closed.jaxpr.invars, inputs, strict=True)
        ]
        outputs = self.run(closed, held)
        return [
            as_half(value, str(atom.aval.dtype)) if is_half(atom.aval.dtype) else value
            for value, atom in zip(outputs, closed.jaxpr.outvars, strict=True)
        ]

    def run(self, closed: jcore.ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of `closed` at `inputs`, as full tensors."""
        outputs = self.run_on_elements(closed, inputs)
        return [
            self.full(value, atom.aval)
            for value, atom in zip(outputs, closed.jaxpr.outvars, strict=True)
        ]

    def run_on_elements(self, closed: jcore.ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of `closed`, narrow where their values repeat.

        A jaxpr of scalars made of operations on elements takes arrays of any one shape.
        """
        values: dict[Any, Any] = {}
        for variable, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            values[variable] = as_computed(constant)
        for variable, value in zip(closed.jaxpr.invars, inputs, strict=True):
            values[variable] = value
        for equation in closed.jaxpr.eqns:
            self._run_equation(equation, values)
        return [self._read(atom, values) for atom in closed.jaxpr.outvars]

    def _run_equation(self, equation: jcore.JaxprEqn, values: dict[Any, Any]) -> None:
        if any(_is_complex(atom) for atom in (*equation.invars, *equation.outvars)):
            raise self._unsupported(equation, "complex numbers; use real ones")
        found = RULES.find(equation.primitive.name)
        if found is None:
            raise self._unsupported(equation, "")
        rule, broadcasts = found
        inputs = [self._read(atom, values) for atom in equation.invars]
        if not broadcasts:
            inputs = [
                self.full(value, atom.aval)
                for value, atom in zip(inputs, equation.invars, strict=True)
            ]
        try:
            outputs = rule(self, equation, *inputs)
        except NotLowerable as error:
            raise self._unsupported(equation, str(error)) from error
        except _TENSORFLOW_REFUSES as error:
            reason = str(error).strip().split("\n")[0]
            raise self._unsupported(equation, f"TensorFlow refuses it: {reason}") from error
        if not isinstance(outputs, list):
            outputs = [outputs]
        for variable, value in zip(equation.outvars, outputs, strict=True):
            values[variable] = rounded(equation, variable, value)

    def _unsupported(self, equation: jcore.JaxprEqn, reason: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            equation.primitive.name,
            source=source_line_of(equation),
            module_path=module_path_of(equation),
            reason=reason,
        )

    def _read(self, atom: Any, values: dict[Any, Any]) -> Any:
        if not is_var(atom):
            return tf.constant(as_computed(np.asarray(atom.val, atom.aval.dtype)))
        if isinstance(values[atom], np.ndarray):
            values[atom] = tf.constant(values[atom])
        return values[atom]

    def dimension(self, size: Any) -> Any:
        """Return the value of one dimension: an int, or an int32 tensor if it holds the batch."""
        if isinstance(size, int | np.integer):
            return int(size)
        return _evaluate(size, self.batch)

    def shape(self, sizes: Sequence[Any]) -> Any:
        """Return a shape that TensorFlow takes, with at most one -1 in place of the batch."""
        dynamic = [index for index, size in enumerate(sizes) if not is_static_shape((size,))]
        if len(dynamic) <= 1:
            return [-1 if index in dynamic else int(size) for index, size in enumerate(sizes)]
        return self.exact_shape(sizes)

    def exact_shape(self, sizes: Sequence[Any]) -> Any:
        """Return a shape with every dimension known: a list of ints or an int32 tensor."""
        if is_static_shape(sizes) or isinstance(self.batch, int):
            return [int(self.dimension(size)) for size in sizes]
        return tf.stack([tf.cast(self.dimension(size), tf.int32) for size in sizes])

    def full(self, value: Any, aval: Any) -> Any:
        """Return `value` repeated along the axes in which it is narrower than `aval`."""
        shape = tuple(aval.shape)
        if value.shape.rank == len(shape):
            own = value.shape.as_list()
            if all(o != 1 or self._is_one(size) for o, size in zip(own, shape, strict=True)):
                return value
        return tf.broadcast_to(value, self.exact_shape(shape))

    def _is_one(self, size: Any) -> bool:
        known = isinstance(size, int | np.integer) or isinstance(self.batch, int)
        return known and int(self.dimension(size)) == 1


def _is_complex(atom: Any) -> bool:
    return "complex" in str(getattr(atom.aval, "dtype", ""))


def _evaluate(size: Any, batch: Any) -> Any:
    """Evaluate a dimension expression in the batch size, by its own arithmetic."""
    return size._evaluate(dict.fromkeys(size._get_vars(), batch))
