"""Sums of the regularization terms that modules return."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jp


def no_regularization() -> jax.Array:
    """Returns the scalar zero of modules that regularize nothing."""
    # Weakly typed, so that adding it never changes or clashes with another term's dtype.
    return jp.array(0.0)


def sum_regularization(losses: Iterable[Any]) -> jax.Array:
    """Adds terms that are scalars or hold one value per environment.

    Args:
        losses: Scalars, or arrays of shape ``(batch,)``.

    Returns:
        Their sum: ``(batch,)`` if any term has that shape, else a scalar; zero if there are none.
    """
    # Starting from the first term instead of zero leaves one addition out of every program.
    total = None
    for loss in losses:
        total = jp.asarray(loss) if total is None else total + loss
    return no_regularization() if total is None else total
