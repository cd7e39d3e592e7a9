"""Typed PRNG keys among arrays: NumPy cannot hold them, their raw data it can."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def is_key(leaf: Any) -> bool:
    """Return whether `leaf` is an array of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_key_type(leaf: Any) -> Any:
    """Return the raw data of a key array (`uint32`, one more axis), any other leaf unchanged."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf
