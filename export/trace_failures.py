"""Say in the user's terms why a network cannot be traced, and at which of its lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core as jcore

from export.errors import NetworkError
from export.module_scopes import module_path_of_error, source_line_of_error


@contextlib.contextmanager
def explained_failures(observation: Any, batch_size: int | None) -> Iterator[None]:
    """Turn whatever a network's call raises into a `NetworkError` that says what to change.

    Args:
        observation: The batched observation that the network is called with.
        batch_size: As for `export_policy`.
    """
    try:
        yield
    except NetworkError:
        raise
    except Exception as error:
        raise NetworkError(_explanation(error, observation, batch_size)) from error


def _explanation(error: Exception, observation: Any, batch_size: int | None) -> str:
    where = f"module '{module_path_of_error(error)}' at {source_line_of_error(error)}"
    reason = str(error).strip().split("\n")[0]
    if _has_data_dependent_shape(error):
        return (
            f"the network cannot be traced: in {where} the values of an array decide a shape "
            f"({reason}), and an exported step has fixed shapes. Use jnp.where(mask, x, 0) instead "
            "of x[mask], and pass size= to jnp.nonzero, jnp.unique and their kin"
        )
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.UnexpectedTracerError):
        return (
            "the network cannot be traced: its Python code needs the value of an array, or keeps "
            f"one, in {where} ({reason}). Use jax.lax.cond/jnp.where instead of `if` on arrays"
        )
    if isinstance(error, jcore.InconclusiveDimensionOperation):
        return (
            f"the network cannot be traced for any batch size, in {where}: {reason}. "
            "Do not branch on the batch size, or export with batch_size=N"
        )
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", observation)
    return (
        f"calling the network failed with {type(error).__name__} in {where}: {reason}. It was "
        f"called with a batch of the example observation, {shapes}"
        + ("" if batch_size is not None else " ('b' stands for any batch size)")
    )


def _has_data_dependent_shape(error: Exception) -> bool:
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return True
    return isinstance(error, TypeError) and any(part in str(error) for part in _SHAPE_MESSAGES)


# JAX has no class of its own for these.
_SHAPE_MESSAGES = (
    "size argument",
    "Shapes must be 1D sequences of concrete values",
    "total number of repeats",
    "total_repeat_length",
)
