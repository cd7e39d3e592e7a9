"""One run of a policy for some rows, whose number changes from run to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from serving.bundle import Bundle
from serving.errors import ActionError, ObservationError, ServingError, StepError
from serving.finite import all_finite, first_non_finite
from serving.manifest import Port
from serving.runtimes.base import Runtime, Step


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run gave for each row."""

    results: list[list[np.ndarray] | ServingError]
    """Action and extra outputs in port order, without a batch axis; or why there are none."""
    next_carry: list[np.ndarray]
    """Arrays [n, ...] in port order; of no meaning in rows with an error."""


class BatchedStep:
    """Steps up to `max_batch_size` rows, each with a carry of its own that comes and goes.

    Memory is bound for the sizes 1, 2, 4, …, so a batch is filled up to the next of them with rows
    that nobody reads. Rows do not influence each other: one that is refused leaves the others as
    they are.

    Args:
        bundle: the policy.
        runtime: its artefact, loaded.
        max_batch_size: most rows of one run; a bundle with a fixed batch overrules it.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, *, max_batch_size: int) -> None:
        self.manifest = bundle.manifest
        fixed = self.manifest.batch_size
        self.max_batch_size = max_batch_size if fixed is None else fixed
        sizes = {min(1 << n, max_batch_size) for n in range(max_batch_size.bit_length() + 1)}
        self._sizes = sorted(sizes) if fixed is None else [fixed]
        self._steps = {size: runtime.bind(size) for size in self._sizes}
        # A carry that starts out infinite, such as a running minimum, may stay so.
        self._carry_is_finite = [
            bool(np.isfinite(bundle.initial_carry[port.name]).all())
            for port in self.manifest.carry_ports
        ]

    def run(
        self, carry: Sequence[np.ndarray], observations: Sequence[Sequence[np.ndarray]]
    ) -> Outcome:
        """Steps the rows once.

        Args:
            carry: arrays [n, ...] in port order, with n from 1 to `max_batch_size`.
            observations: n observations, each one array for each port in order.

        Returns:
            What became of each row. Nothing is raised: a runtime that fails gives a StepError in
            every row.
        """
        n = len(observations)
        step = self._steps[next(size for size in self._sizes if size >= n)]
        for target, value in zip(step.carry, carry, strict=True):
            target[:n] = value
        errors: list[ServingError | None] = [
            self._take(observation, step, row) for row, observation in enumerate(observations)
        ]
        self._refuse_non_finite(step, n, errors)
        try:
            step.run()
        except Exception as error:  # every runtime has its own family of errors
            failure = StepError(f"the runtime failed: {error}; the carry is unchanged")
            return Outcome([e or failure for e in errors], [])
        self._check_outputs(step, n, errors)
        outputs = [array[:n].copy() for array in [*step.action, *step.extra]]
        results = [
            [array[row, ...] for array in outputs] if error is None else error
            for row, error in enumerate(errors)
        ]
        return Outcome(results, [array[:n] for array in step.next_carry])

    def _take(self, observation: Sequence[np.ndarray], step: Step, row: int) -> ServingError | None:
        ports = self.manifest.observation_ports
        if len(observation) != len(ports):
            return ObservationError(f"{len(observation)} arrays, expected {len(ports)}")
        for target, value, port in zip(step.observation, observation, ports, strict=True):
            if value.shape != target.shape[1:] or value.dtype != target.dtype:
                return ObservationError(
                    f"{port.name}: {value.dtype}{list(value.shape)}, expected "
                    f"{target.dtype}{list(target.shape[1:])}"
                )
            target[row] = value
        return None

    def _refuse_non_finite(self, step: Step, n: int, errors: list[ServingError | None]) -> None:
        for array, port in zip(step.observation, self.manifest.observation_ports, strict=True):
            for row in _bad_rows(array[:n]):
                errors[row] = errors[row] or ObservationError(
                    f"{_value(array[row, ...], port)}; observations must be finite"
                )
                array[row] = 0

    def _check_outputs(self, step: Step, n: int, errors: list[ServingError | None]) -> None:
        outputs = [*zip(step.action, self.manifest.action_ports, strict=True)]
        outputs += [
            (array, port)
            for array, port, finite in zip(
                step.next_carry, self.manifest.carry_ports, self._carry_is_finite, strict=True
            )
            if finite
        ]
        for array, port in outputs:
            for row in _bad_rows(array[:n]):
                errors[row] = errors[row] or ActionError(
                    f"the policy gave {_value(array[row, ...], port)}; the carry is unchanged"
                )


def _bad_rows(array: np.ndarray) -> list[int]:
    if all_finite(array):
        return []
    finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return [int(row) for row in np.flatnonzero(~finite)]


def _value(row: np.ndarray, port: Port) -> str:
    index = first_non_finite(row)
    where = f" at index {list(index)}" if index else ""
    return f"{port.name}: {row[index]}{where}"
