"""One session that follows the network over a trajectory, and how far it strays."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping

import numpy as np

from export.port_errors import PortErrors
from serving import Session
from serving import tree as serving_tree
from serving.latency import latency_histogram
from serving.parity_record import Comparison
from serving.self_test import outputs_by_port

_PROFILE_POINTS = 200
"""How many points of the error over time a report keeps."""


class Follower:
    """Steps a session on the network's observations and measures every output.

    Args:
        session: One of an artefact, with as many rows as the trajectory; observations may be
            anything.
        name: The artefact's name.
        mode: `free_running`, with the session's own carry, or `teacher_forced`, with the network's.
        steps: Steps of the trajectory.
        bound: Absolute bound and, added to it, relative bound.
        effects: Called where a bound is violated, returns output → its rounding effect up to each
            step, `[T]`, as `PortResult` explains it, which the bound is then widened by.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        mode: str,
        steps: int,
        bound: float,
        *,
        effects: Callable[[], Mapping[str, np.ndarray]] | None = None,
    ):
        self._manifest = session.manifest
        self._session = session
        self._name, self._mode = name, mode
        self._bound = bound
        self._effects = effects
        self._errors: dict[str, PortErrors] = {}
        self._pieces: dict[str, np.ndarray] = {}
        self._times_us = np.zeros(steps)
        self._action_errors = np.zeros(steps)

    @property
    def errors(self) -> dict[str, float]:
        """Output → largest absolute error so far."""
        return {name: errors.max_abs_error for name, errors in self._errors.items()}

    @property
    def violated(self) -> bool:
        """Whether an element of what was measured so far is outside its bound."""
        return any(errors.violations for errors in self._errors.values())

    def follow(
        self,
        first: int,
        observations: list[np.ndarray],
        reset: np.ndarray,
        expected: Mapping[str, np.ndarray],
        before: Mapping[str, np.ndarray],
    ) -> None:
        """Do the next steps.

        Args:
            first: Number of the first of them.
            observations: One array `[T, B, ...]` per leaf of the observation.
            reset: `[T, B]` bool.
            expected: Output → `[t, B, ...]`, what the network puts out in these steps.
            before: Output → `[B, ...]`, what it put out in the step before; empty for the first.
        """
        if not self._pieces:
            self._pieces = {name: np.empty_like(values) for name, values in expected.items()}
            self._errors = {name: PortErrors(name, self._bound) for name in expected}
        count = len(next(iter(expected.values())))
        for index in range(count):
            if self._mode == "teacher_forced" and before:
                ports = self._manifest.carry_ports
                self._session.carry = {port.name: before[port.next_name] for port in ports}
            self._step(index, [leaf[first + index] for leaf in observations], reset, first)
            before = {name: values[index] for name, values in expected.items()}
        self._measure(count, expected)
        span = slice(first, first + count)
        for port in self._manifest.action_ports:
            distance = _distance(self._pieces[port.name][:count], expected[port.name])
            self._action_errors[span] = np.maximum(self._action_errors[span], distance)

    def _step(self, index: int, leaves: list[np.ndarray], reset: np.ndarray, first: int) -> None:
        observation = serving_tree.unflatten(self._manifest.observation, leaves)
        begin = time.perf_counter()
        action = self._session.step(observation, reset=reset[first + index])
        self._times_us[first + index] = (time.perf_counter() - begin) * 1e6
        for name, value in outputs_by_port(self._session, action).items():
            self._pieces[name][index] = value

    def _measure(self, count: int, expected: Mapping[str, np.ndarray]) -> None:
        """Add the last `count` steps to the errors."""
        before = {name: copy.copy(errors) for name, errors in self._errors.items()}
        had_violated = self.violated
        for name, errors in self._errors.items():
            errors.add(self._pieces[name][:count], expected[name])
        if had_violated or not self.violated or self._effects is None:
            return
        effects = self._effects()
        self._errors = before
        for name, errors in before.items():
            if name in effects:
                errors.widen(effects[name])
            errors.add(self._pieces[name][:count], expected[name])

    def comparison(self) -> Comparison:
        """Return what was found in all steps."""
        profile = np.array_split(
            self._action_errors, min(_PROFILE_POINTS, self._action_errors.size)
        )
        return Comparison(
            runtime=self._name,
            mode=self._mode,
            batch_size=self._session.batch_size or 1,
            tolerance=self._bound,
            ports=[errors.result() for errors in self._errors.values()],
            step_median_us=float(np.median(self._times_us)),
            step_p99_us=float(np.percentile(self._times_us, 99)),
            error_over_time=[float(part.max()) for part in profile],
            step_histogram=latency_histogram(self._times_us),
        )


def _distance(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the largest error in each step; infinite where one side alone is not finite."""
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(a - e)
    error[(a == e) | (np.isnan(a) & np.isnan(e))] = 0.0
    error[np.isnan(error)] = np.inf
    return error.reshape(error.shape[0], -1).max(axis=1, initial=0.0)
