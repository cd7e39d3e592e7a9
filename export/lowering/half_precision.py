"""float16 and bfloat16 in runtimes that lack them: float32, rounded after each operation.

A value of these types travels as float32. What an operation returns is rounded to the type that
the network computes in, so that weights and activations are the numbers that the network has; only
the sums inside one operation are those of float32, as in XLA.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from jax.extend import core as jcore

from export.half_dtypes import is_half

# Operations whose results are among their operands' values, so that there is nothing to round.
_EXACT = frozenset(
    [
        "abs", "approx_top_k", "broadcast_in_dim", "clamp", "concatenate", "cond", "copy",
        "cummax", "cummin", "dynamic_slice", "dynamic_update_slice", "gather", "jit", "max", "min",
        "name", "neg", "optimization_barrier", "pad", "reduce_max", "reduce_min",
        "reduce_window_max", "reduce_window_min", "reshape", "rev", "scan", "scatter",
        "scatter-max", "scatter-min", "select_n", "slice", "sort", "split", "squeeze", "stack",
        "stop_gradient", "take_slot", "tile", "top_k", "transpose", "unstack", "while",
    ]
)  # fmt: skip

TO_BFLOAT16 = "to_bfloat16"
"""Part of the name of every TensorFlow operation that converts to bfloat16."""


def computed_dtype(dtype: Any) -> Any:
    """Return the TensorFlow dtype in which values of a JAX dtype are held."""
    return tf.float32 if is_half(dtype) else tf.as_dtype(np.dtype(dtype))


def as_computed(constant: Any) -> np.ndarray:
    """Return a constant as it is held."""
    array = np.asarray(constant)
    return array.astype(np.float32) if is_half(array.dtype) else array


def rounded(equation: jcore.JaxprEqn, atom: Any, value: Any) -> Any:
    """Return an equation's result with the rounding of its dtype."""
    dtype = getattr(atom.aval, "dtype", None)
    if not is_half(dtype) or equation.primitive.name in _EXACT:
        return value
    return round_to(value, str(dtype))


def round_to(value: Any, dtype: str) -> Any:
    """Return float32 numbers rounded to float16 or bfloat16."""
    return tf.cast(as_half(value, dtype), value.dtype)


def as_half(value: Any, dtype: str) -> Any:
    """Return float32 numbers as float16 or bfloat16."""
    return tf.cast(value, dtype, name=TO_BFLOAT16 if dtype == "bfloat16" else None)
