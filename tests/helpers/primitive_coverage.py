"""Which primitives are compared with JAX: in which formats, dtypes and kinds of values.

The step of a case is run through the rules once more, operation by operation, and each primitive's
operands are looked at. What passes have folded away does not get there and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jp
import numpy as np
import tensorflow as tf

from export.lowering import RULES, Lowering

PORTABLE_FORMATS = ("saved_model", "onnx")

Entry = tuple[str, str, str, str]
"""Primitive, format, dtype, kind of value."""

COMPARED: set[Entry] = set()
"""What the tests of this process have compared so far."""

# Operands that say where or which, not what.
_DATA_OPERANDS: dict[str, slice] = {
    "cond": slice(1, None),
    "dynamic_slice": slice(0, 1),
    "dynamic_update_slice": slice(0, 2),
    "gather": slice(0, 1),
    "select_n": slice(1, None),
}


def record(step: Any, inputs: Sequence[np.ndarray], formats: Iterable[str]) -> None:
    """Note what reached the rules in a step whose outputs agreed with JAX's.

    Args:
        step: The exported step that was compared.
        inputs: What it was run on.
        formats: Which formats were compared.
    """
    lowering = _Watching(np.shape(inputs[0])[0])
    lowering.run_step(step.portable, [tf.constant(value) for value in inputs])
    COMPARED.update(
        (primitive, format, dtype, kind)
        for primitive, dtype, kind in lowering.seen
        for format in formats
    )


def registered() -> list[str]:
    """Names of all primitives with a rule."""
    return RULES.primitives


class _Watching(Lowering):
    """Runs the rules on numbers and notes what reaches each of them."""

    def __init__(self, batch: int):
        super().__init__(batch)
        self.seen: set[tuple[str, str, str]] = set()

    def _run_equation(self, equation: Any, values: dict[Any, Any]) -> None:
        operands = [(atom, self._read(atom, values)) for atom in equation.invars]
        super()._run_equation(equation, values)
        name = equation.primitive.name
        if name.startswith("scatter"):
            operands = operands[::2]
        data = operands[_DATA_OPERANDS.get(name, slice(None))]
        if not operands:
            data = [(atom, values[atom]) for atom in equation.outvars]
        for atom, value in data:
            dtype = str(atom.aval.dtype)
            kinds = kinds_of(np.asarray(value), dtype)
            self.seen.update((name, dtype, kind) for kind in kinds)


def kinds_of(values: np.ndarray, dtype: str) -> set[str]:
    """Return the kinds of values that occur in an array of a JAX dtype.

    Bits are looked at where a processor that flushes subnormal numbers would see zeros.
    """
    if values.size == 0:
        return set()
    if dtype == "bool":
        return {"ordinary"}
    if np.issubdtype(values.dtype, np.integer):
        limits = np.iinfo(dtype)
        found = {
            "lowest": values == limits.min,
            "highest": values == limits.max,
            "ordinary": (values != limits.min) & (values != limits.max),
        }
        return {kind for kind, where in found.items() if where.any()}
    info = jp.finfo(dtype)
    size = np.abs(values).astype(np.float64)
    smallest = _smallest_normal_of(values.dtype)
    bits = values.view(f"i{values.dtype.itemsize}")
    is_zero = (bits << 1) == 0
    below_normal = ~is_zero & ((size < smallest) | (size < float(info.smallest_normal)))
    # Halfway, in the logarithm, to the ends of the range.
    large, small = 2.0 ** (info.maxexp // 2), 2.0 ** -(info.maxexp // 2)
    normal = np.isfinite(values) & ~is_zero & ~below_normal
    found = {
        "ordinary": normal & (size > small) & (size < large),
        "huge": normal & (size >= large),
        "tiny": normal & (size <= small),
        "inf": np.isposinf(values),
        "-inf": np.isneginf(values),
        "nan": np.isnan(values),
        "-0.0": is_zero & (bits < 0),
        "subnormal": below_normal,
    }
    return {kind for kind, where in found.items() if where.any()}


def _smallest_normal_of(dtype: Any) -> float:
    return float(np.finfo(dtype).smallest_normal)
