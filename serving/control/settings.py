"""Settings of the watchdog."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from serving.errors import LoopError


@dataclasses.dataclass(frozen=True)
class Watchdog:
    """When the watchdog acts, and how."""

    timeout_s: float
    """Longest time in seconds for one call of `read`, the policy or `apply`."""
    emergency: Callable[[Any], Any] | None = None
    """Called with the safe action (None if there is none) from the watchdog's thread, possibly
    while `apply` is running; None to use `apply`, unless that is itself the one that is stuck."""

    def __post_init__(self) -> None:
        """Refuses a time that is none.

        Raises:
            LoopError: saying what was given.
        """
        if not 0.0 < self.timeout_s < math.inf:
            raise LoopError(f"timeout_s is {self.timeout_s!r}, expected a positive number")
        if self.emergency is not None and not callable(self.emergency):
            raise LoopError(f"emergency is {self.emergency!r}, expected a function")
