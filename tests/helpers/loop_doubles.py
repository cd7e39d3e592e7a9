"""A robot, a session and a clock for control loops that wait for nothing."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from serving import ActionGuard, ControlLoop, Session


class Clock:
    """Time that passes only when someone sleeps or works."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.now_s += duration_s


class Robot:
    """Counts what it is asked for; each call takes the time that the test says."""

    def __init__(self, clock: Clock, *, read_s: float = 0.001, apply_s: float = 0.001) -> None:
        self.clock = clock
        self.read_s = read_s
        self.apply_s = apply_s
        self.stalls: dict[int, float] = {}
        self.read_at_s: list[float] = []
        self.applied: list[object] = []

    def read(self) -> int:
        self.read_at_s.append(self.clock.now_s)
        self.clock.now_s += self.read_s + self.stalls.get(len(self.read_at_s) - 1, 0.0)
        return len(self.read_at_s)

    def apply(self, action: object) -> None:
        self.clock.now_s += self.apply_s
        self.applied.append(action)


class Doubler:
    """A session that takes two milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def step(self, observation: int) -> int:
        self.clock.now_s += 0.002
        return 2 * observation


SAFE = {"gripper": np.float32(-1.0), "joints": np.zeros(3, np.float32)}


class Rig:
    """A real session between a scripted robot's callables, on a clock that waits for nothing."""

    def __init__(self, session: Session, clock: Clock, observations: list[Any]) -> None:
        self.session = session
        self.clock = clock
        self.stream: Iterator[Any] = iter(observations)
        self.applied: list[Any] = []
        self.carries: list[np.ndarray] = [self.hidden()]

    def hidden(self) -> np.ndarray:
        return self.session.carry["carry.hidden"]

    def read(self) -> Any:
        self.clock.now_s += 0.001
        value = next(self.stream)
        if isinstance(value, Exception):
            raise value
        return value

    def apply(self, action: Any) -> None:
        self.clock.now_s += 0.001
        self.applied.append(action)
        self.carries.append(self.hidden())

    def loop(self, **change: Any) -> ControlLoop:
        parts = {"read": self.read, "apply": self.apply, **change}
        parts.setdefault("actions", ActionGuard(safe_action=SAFE))
        return ControlLoop(self.session, **parts, clock=self.clock, sleep=self.clock.sleep)

    def last_is_safe(self) -> bool:
        last = self.applied[-1]
        return last["gripper"] == -1.0 and not last["joints"].any()

    def carry_is_that_of(self, action: int) -> bool:
        """Whether the carry is as it was when the given action, from zero, was applied."""
        return np.array_equal(self.hidden(), self.carries[action + 1])


def with_nan(observation: Any) -> Any:
    position = observation["arm"]["position"].copy()
    position[1] = np.nan
    return {**observation, "arm": {**observation["arm"], "position": position}}


def too_wide(observation: Any) -> Any:
    arm = {**observation["arm"], "position": np.zeros(4, np.float32)}
    return {**observation, "arm": arm}


def making_nan(observation: Any) -> Any:
    """An observation of finite numbers under which the leaky state overflows."""
    position = np.array([3e38, -3e38, 3e38], np.float32)
    return {**observation, "arm": {**observation["arm"], "position": position}}
