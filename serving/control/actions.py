"""What becomes of an action between the policy and the robot.

A new action is scaled, checked, and limited to its range; on the way to `apply` it may be blended
with the one before it and is limited in its rate. Held and safe actions are made here too. Nothing
in this file knows the time: the loop says which tick it is.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np

from serving.control.faults import Fault
from serving.control.layout import ActionLayout
from serving.errors import LoopError
from serving.manifest import Manifest, Metadata, Numbers


@dataclasses.dataclass(frozen=True)
class ActionGuard:
    """Scaling, limits and the safe action.

    Numbers are one for all elements, a list in port order, or either by action port, in the units
    that `apply` gets. Limits and the safe action default to those of the bundle's metadata if that
    is what its metadata speaks of: what the robot is sent. Limits are for floating-point elements;
    integers and booleans are sent as the policy gives them.
    """

    scale: bool = False
    """Multiply by the metadata's `action_scale` and add its `action_offset`, unless the policy has
    done so (`action_applied_by` is "policy"). Leave it False where `apply` does that."""
    low: Numbers = None
    """Lower limit; None for `action_low` of the metadata."""
    high: Numbers = None
    """Upper limit; None for `action_high` of the metadata."""
    rate_limit_per_s: Numbers = None
    """Largest change in a second; None for no limit. A period allows its part, also after ticks
    that were skipped. Not for the way to the safe action, which has its ramp."""
    safe_action: Any = None
    """Sent last, and by the reaction "safe": an action tree, or one number for all its elements;
    None for `safe_action` of the metadata. Not limited."""
    ramp_s: float = 0.0
    """Time in seconds over which the safe action is approached, in equal steps."""

    def __post_init__(self) -> None:
        """Refuses a ramp that is no duration.

        Raises:
            LoopError: saying what was given.
        """
        if not 0.0 <= self.ramp_s < math.inf:
            raise LoopError(f"ramp_s is {self.ramp_s!r}, expected at least 0")


class ActionPath:
    """Turns the policy's actions into those that are sent, and remembers the last one sent.

    Not safe for two threads at once: the loop holds a lock around it.

    Args:
        session: the loop's; its manifest says what an action is, if it has one.
        guard: what the user asked for.
        rate_hz: actions sent per second.
    """

    def __init__(self, session: Any, guard: ActionGuard, *, rate_hz: float) -> None:
        self._guard = guard
        self._ramp_steps = max(1, math.ceil(guard.ramp_s * rate_hz - 1e-6))
        self._rate_hz = rate_hz
        self._manifest: Manifest | None = getattr(session, "manifest", None)
        self._metadata = Metadata() if self._manifest is None else self._manifest.metadata
        self._layout: ActionLayout | None = None
        self._low: np.ndarray | None = None
        self._high: np.ndarray | None = None
        self.restart()
        if guard.scale and self._manifest is None:
            raise LoopError("scale is set, but the session has no manifest that says the scale")
        units_match = self._units_match()
        self._safe: Any = guard.safe_action
        if self._safe is None and units_match:
            self._safe = self._metadata.safe_action
        self._limits = (guard.low, guard.high)
        if units_match:
            self._limits = (
                self._metadata.action_low if guard.low is None else guard.low,
                self._metadata.action_high if guard.high is None else guard.high,
            )
        if self._manifest is not None:
            batch_size: int | None = getattr(session, "batch_size", None)
            self._prepare(ActionLayout.of_manifest(self._manifest, batch_size))

    @property
    def has_safe_action(self) -> bool:
        """Whether there is a safe action."""
        return self._safe is not None

    @property
    def sent(self) -> np.ndarray:
        """The floating-point elements of the action sent last; zeros before the first."""
        return self._sent

    @property
    def size(self) -> int:
        """Number of floating-point elements of an action; 0 before it is known."""
        return 0 if self._layout is None else self._layout.size

    def restart(self) -> None:
        """Forgets what was sent: a new run begins."""
        self.has_sent = False
        self._newest: Any = None
        self._newest_fresh = False
        self._ramp_step = 0
        self._last_object: Any = None
        self.rate_limited = 0
        if self._layout is not None:
            self._sent[...] = 0.0

    def take(self, action: Any) -> bool:
        """Takes a new action of the policy over, scaled and limited to its range.

        Returns:
            Whether an element was out of its range.

        Raises:
            Fault: of kind "action_invalid" if an element is not finite, or would not be in the
                dtype that it is sent in.
        """
        if self._layout is None:
            layout = ActionLayout.of_value(action)
            if layout is not None:
                try:
                    self._prepare(layout)
                except LoopError as error:
                    raise Fault("action_invalid", str(error), error) from error
            elif self._is_limited():
                kind = type(action).__name__
                message = f"the action is a {kind}, whose limits are not known without a manifest"
                raise Fault("action_invalid", message)
        self._newest = action
        layout = self._layout
        if layout is None:
            return False
        try:
            self._newest_leaves = layout.gather(action, self._work)
        except LoopError as error:
            raise Fault("action_invalid", str(error), error) from error
        self._newest_fresh = True
        if self._scale is not None or self._offset is not None:
            self._newest_fresh = False
            if self._scale is not None:
                np.multiply(self._work, self._scale, out=self._work)
            if self._offset is not None:
                np.add(self._work, self._offset, out=self._work)
        if self._work.size and not math.isfinite(float(self._work.sum())):
            wrong = np.flatnonzero(~np.isfinite(self._work))
            if wrong.size:
                element = int(wrong[0])
                raise Fault("action_invalid", f"element {element} is {self._work[element]}")
        outside = False
        if self._low is not None or self._high is not None:
            _limit(self._work, self._low, self._high, out=self._target)
            outside = bool((self._target != self._work).any())
            self._newest_fresh &= not outside
        else:
            np.copyto(self._target, self._work)
        np.abs(self._target, out=self._clipped)
        if (self._clipped > layout.largest).any():
            element = int(np.argmax(self._clipped > layout.largest))
            message = f"element {element} is {self._target[element]}, beyond what its dtype can say"
            raise Fault("action_invalid", message)
        if self.has_sent:
            np.copyto(self._start, self._sent)
        else:
            np.copyto(self._start, self._target)
        return outside

    def drop_newest(self, *, is_safe: bool) -> None:
        """Has `follow` send what was sent last until a new action is taken.

        Args:
            is_safe: whether that was the safe action itself, sent past this object.
        """
        self._newest = self._safe if is_safe else self._last_object
        if self._layout is None or not (self.has_sent or is_safe):
            return
        if is_safe:
            np.copyto(self._sent, self._safe_vector)
            self._sent_leaves = self._safe_leaves
            self.has_sent = True
        np.copyto(self._target, self._sent)
        np.copyto(self._start, self._sent)
        self._newest_leaves = self._sent_leaves
        self._newest_fresh = False

    def follow(self, share: float) -> Any:
        """Returns the action to send on the way to the newest one.

        Args:
            share: how much of the way from the action sent before the newest came is to be gone
                with this action, from 0 to 1.
        """
        self._ramp_step = 0
        if self._layout is None:
            return self._remember(self._newest)
        changed = not self._newest_fresh
        work = self._work
        if share < 1.0 and self.has_sent:
            np.subtract(self._target, self._start, out=work)
            np.multiply(work, share, out=work)
            np.add(work, self._start, out=work)
            changed = True
        else:
            np.copyto(work, self._target)
        if self._largest_step is not None and self.has_sent:
            np.subtract(work, self._sent, out=work)
            _limit(work, self._largest_step_down, self._largest_step, out=self._clipped)
            if (self._clipped != work).any():
                self.rate_limited += 1
                changed = True
            np.add(self._sent, self._clipped, out=work)
            if not changed:
                np.copyto(work, self._target)
        np.copyto(self._sent, work)
        action = self._layout.build(work, self._newest_leaves) if changed else self._newest
        # The same arrays are never sent twice: whoever got them may keep or change them.
        self._newest_fresh = False
        self._sent_leaves = self._newest_leaves
        return self._remember(action)

    def hold(self) -> Any:
        """Returns the action sent last once more."""
        self._ramp_step = 0
        if self._layout is None:
            return self._last_object
        return self._layout.build(self._sent, self._sent_leaves)

    def safe(self) -> Any:
        """Returns the next action on the ramp to the safe action, in the end that itself."""
        self._ramp_step = min(self._ramp_step + 1, self._ramp_steps)
        if self._layout is None:
            return self._remember(self._safe)
        if self._ramp_step == 1:
            np.copyto(self._ramp_start, self._sent if self.has_sent else self._safe_vector)
        if self._ramp_step == self._ramp_steps or not self.has_sent:
            self._ramp_step = self._ramp_steps
            np.copyto(self._sent, self._safe_vector)
        else:
            np.subtract(self._safe_vector, self._ramp_start, out=self._sent)
            np.multiply(self._sent, self._ramp_step / self._ramp_steps, out=self._sent)
            np.add(self._sent, self._ramp_start, out=self._sent)
        self._sent_leaves = self._safe_leaves
        return self._remember(self._layout.build(self._sent, self._safe_leaves))

    def safe_action(self) -> Any:
        """Returns the safe action itself, as a new one; None if there is none. Changes nothing."""
        if self._layout is None or self._safe is None:
            return self._safe
        return self._layout.build(self._safe_vector, self._safe_leaves)

    def finish_ramp(self) -> None:
        """Makes the next safe action the last one of the ramp."""
        self._ramp_step = self._ramp_steps

    @property
    def ramp_is_done(self) -> bool:
        """Whether the safe action itself was the last one sent."""
        return self._ramp_step == self._ramp_steps

    def _remember(self, action: Any) -> Any:
        self.has_sent = True
        self._last_object = action
        return action

    def _is_limited(self) -> bool:
        return any(value is not None for value in (*self._limits, self._guard.rate_limit_per_s))

    def _units_match(self) -> bool:
        """Whether `apply` gets what limits and safe action of the metadata are about."""
        metadata = self._metadata
        scaled_elsewhere = metadata.action_applied_by != "policy" and not self._guard.scale
        has_scale = metadata.action_scale is not None or metadata.action_offset is not None
        if not (scaled_elsewhere and has_scale):
            return True
        if metadata.safe_action is not None and self._guard.safe_action is None:
            warnings.warn(
                "the bundle's safe_action is not used: it is in the units that the robot is sent, "
                "but apply gets actions before action_scale and action_offset. Pass "
                "ActionGuard(scale=True) and leave the scaling out of apply, or give safe_action",
                RuntimeWarning,
                stacklevel=4,
            )
        return False

    def _prepare(self, layout: ActionLayout) -> None:
        """Lays out everything that the guard and the metadata say, and allocates all memory."""
        metadata, guard = self._metadata, self._guard
        self._check_that_limits_apply(layout)
        scaled = guard.scale and metadata.action_applied_by != "policy"
        self._scale = layout.spread(metadata.action_scale, "action_scale") if scaled else None
        self._offset = layout.spread(metadata.action_offset, "action_offset") if scaled else None
        low, high = self._limits
        lower, upper = layout.spread(low, "low"), layout.spread(high, "high")
        for name, limit, given in (("low", lower, low), ("high", upper, high)):
            if limit is not None and np.isnan(limit).any():
                raise LoopError(
                    f"{name} is {given}, expected numbers; without a limit, give an infinity"
                )
        if lower is not None and upper is not None and (lower > upper).any():
            raise LoopError(f"low is above high: {low} > {high}")
        self._low = None if lower is None else layout.inside(lower, math.inf)
        self._high = None if upper is None else layout.inside(upper, -math.inf)
        for name, limit, given in (("low", self._low, low), ("high", self._high, high)):
            nothing = math.inf if name == "low" else -math.inf
            if limit is not None and (limit == nothing).any():
                raise LoopError(f"{name} is {given}, which leaves no finite number of its dtype")
        rate = layout.spread(guard.rate_limit_per_s, "rate_limit_per_s")
        if rate is not None and not (np.isfinite(rate) & (rate > 0)).all():
            raise LoopError(f"rate_limit_per_s is {guard.rate_limit_per_s}, expected above 0")
        self._largest_step = None if rate is None else rate / self._rate_hz
        self._largest_step_down = None if rate is None else -rate / self._rate_hz
        # Memory of all steps to come.
        self._work, self._clipped = np.zeros(layout.size), np.zeros(layout.size)
        self._target, self._start = np.zeros(layout.size), np.zeros(layout.size)
        self._ramp_start = np.zeros(layout.size)
        self._sent, self._safe_vector = np.zeros(layout.size), np.zeros(layout.size)
        self._newest_leaves: list[Any] = []
        self._sent_leaves: list[Any] = []
        self._safe_leaves: list[Any] = []
        if self._safe is not None:
            self._lay_out_safe_action(layout)
        self._layout = layout

    def _check_that_limits_apply(self, layout: ActionLayout) -> None:
        if layout.size or not self._is_limited():
            return
        message = (
            "there are limits, but the action has integers and booleans only, which are not limited"
        )
        guard = self._guard
        if any(value is not None for value in (guard.low, guard.high, guard.rate_limit_per_s)):
            raise LoopError(f"{message}; have the policy give floats, or leave the limits out")
        warnings.warn(f"{message}: those of the bundle's metadata", RuntimeWarning, stacklevel=5)

    def _lay_out_safe_action(self, layout: ActionLayout) -> None:
        given = self._guard.safe_action
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if given is None or is_number:
            numbers = self._metadata.safe_action if given is None else float(given)
            given = layout.tree_of(numbers, "safe_action")
        self._safe_leaves = layout.gather(given, self._safe_vector)
        # Written so that NaN is refused too.
        if not (np.abs(self._safe_vector) <= layout.largest).all():
            raise LoopError(f"safe_action is {given!r}, expected finite numbers of its dtype")


def _limit(
    values: np.ndarray, low: np.ndarray | None, high: np.ndarray | None, *, out: np.ndarray
) -> None:
    """As `np.clip`, whose checks of its arguments take ten times as long as the work."""
    if low is not None:
        values = np.maximum(values, low, out=out)
    if high is not None:
        np.minimum(values, high, out=out)
