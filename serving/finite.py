"""Whether arrays hold NaN or infinities, found without a pass through Python."""

from __future__ import annotations

import math

import numpy as np


def all_finite(array: np.ndarray) -> bool:
    """Returns whether an array holds neither NaN nor an infinity; integers never do.

    A sum of squares is finite only if every term is, and costs less than half of asking each
    element. Of elements so large that their squares overflow, each is asked.

    >>> all_finite(np.array([1.0, 2.0])), all_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    if array.dtype.kind != "f":
        return True
    if array.dtype.itemsize > 2 and math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(array).all())


def first_non_finite(array: np.ndarray) -> tuple[int, ...]:
    """Returns the index of the first element that is NaN or infinite."""
    return tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
