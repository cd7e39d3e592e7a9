"""What a control loop is given, checked."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from serving.control.faults import FaultPolicy
from serving.control.settings import Watchdog
from serving.errors import LoopError


def checked_step(session: Any) -> Callable[[Any], Any]:
    """Returns the session's step, told to check what it gives if it can."""
    step = session.step
    try:
        can_check = "check_outputs" in inspect.signature(step).parameters
    except (TypeError, ValueError):  # a function of another language does not say
        can_check = False
    return (lambda observation: step(observation, check_outputs=True)) if can_check else step


def check_safe_action(there_is_one: bool, faults: FaultPolicy, watchdog: Watchdog | None) -> None:
    """Checks that there is a safe action wherever one is asked for.

    Raises:
        LoopError: naming what asks for it.
    """
    if there_is_one:
        return
    where = "give one with ActionGuard(safe_action=...) or in the bundle's metadata"
    if kinds := faults.kinds_with("safe"):
        raise LoopError(
            f"the reaction to {kinds[0]} is 'safe', but there is no safe action; {where}"
        )
    if watchdog is not None and watchdog.emergency is None:
        raise LoopError(
            f"the watchdog has neither a safe action nor an emergency function; {where}"
        )


def in_words(error: BaseException) -> str:
    """Returns an exception's type and text."""
    return f"{type(error).__name__}: {error}"


def choose_rate(session: Any, rate_hz: float | None, policy_every: int) -> float:
    """Returns the cycles per second: those given, or what the policy was trained for.

    Raises:
        LoopError: if there are none, or no positive number.
    """
    manifest = getattr(session, "manifest", None)
    trained_hz = manifest.control_rate_hz if manifest is not None else None
    chosen = rate_hz
    if chosen is None and trained_hz is not None:
        chosen = trained_hz * policy_every
    if chosen is None:
        raise LoopError("the bundle does not say a control rate, so rate_hz has to be given")
    if not is_positive(chosen):
        raise LoopError(f"rate_hz is {chosen!r}, expected a positive number")
    acting_hz = chosen / policy_every
    if trained_hz is not None and not math.isclose(acting_hz, trained_hz, rel_tol=1e-3):
        warnings.warn(
            f"the loop runs at {acting_hz} Hz, the policy was made for {trained_hz} Hz; recurrent "
            "and delayed state will run at another speed than in training",
            RuntimeWarning,
            stacklevel=3,
        )
    return float(chosen)


def is_positive(value: Any) -> bool:
    """Whether a value is a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return 0.0 < float(value) < math.inf


def is_count(value: Any) -> bool:
    """Whether a value is an integer of at least 1."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
