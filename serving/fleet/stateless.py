"""A step whose carry comes with the request and goes with the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from serving.bundle import Bundle
from serving.errors import ServingError
from serving.fleet.batches import BatchedStep
from serving.fleet.model_config import START_INPUT, next_carry_ports
from serving.manifest import Port
from serving.runtimes.base import Runtime

Tensors = Mapping[str, np.ndarray]


class CarryInAndOut:
    """Steps rows that bring their carry along; keeps nothing between two calls.

    Attributes:
        inputs: names of what a step takes: observation, carry, and the flag that starts a row.

    Args:
        bundle: the policy.
        runtime: its artefact, loaded.
        max_batch_size: most rows of one run; a bundle with a fixed batch overrules it.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, *, max_batch_size: int) -> None:
        manifest = bundle.manifest
        self._carry_ports = manifest.carry_ports
        self._observation_ports = manifest.observation_ports
        self._outputs: list[Port] = [
            *manifest.action_ports,
            *manifest.extra_output_ports,
            *next_carry_ports(manifest),
        ]
        self._initial = [bundle.initial_carry[port.name] for port in manifest.carry_ports]
        self._step = BatchedStep(bundle, runtime, max_batch_size=max_batch_size)
        ports = [*self._observation_ports, *self._carry_ports]
        self.inputs = [*(port.name for port in ports), START_INPUT]

    def step(self, requests: Sequence[Tensors]) -> list[dict[str, np.ndarray] | ServingError]:
        """Steps the rows of all requests, up to `max_batch_size` in one run.

        Args:
            requests: for each its inputs by name, arrays [n, ...] with an n of its own; a scalar
                port is [n, 1], and so is the flag.

        Returns:
            For each request action, next carry and extra outputs by name, likewise; or what is
            wrong with its first row that is refused, and its client's carry is then still the one
            to go on from.
        """
        counts = [inputs[START_INPUT].size for inputs in requests]
        carry = [
            np.concatenate([x[p.name].reshape(-1, *p.shape) for x in requests])
            for p in self._carry_ports
        ]
        starts = np.concatenate([inputs[START_INPUT].reshape(-1) for inputs in requests])
        for value, initial in zip(carry, self._initial, strict=True):
            value[starts] = initial
        observation = [
            np.concatenate([x[p.name].reshape(-1, *p.shape) for x in requests])
            for p in self._observation_ports
        ]
        rows = self._rows(carry, observation, len(starts))
        ends = np.cumsum(counts)
        return [
            self._joined(rows[end - count : end]) for count, end in zip(counts, ends, strict=True)
        ]

    def _rows(
        self, carry: list[np.ndarray], observation: list[np.ndarray], count: int
    ) -> list[list[np.ndarray] | ServingError]:
        """Returns for each row its outputs and next carry, or its error."""
        rows: list[list[np.ndarray] | ServingError] = []
        for first in range(0, count, self._step.max_batch_size):
            chosen = range(first, min(first + self._step.max_batch_size, count))
            outcome = self._step.run(
                [value[chosen.start : chosen.stop] for value in carry],
                [[value[row, ...] for value in observation] for row in chosen],
            )
            for place, result in enumerate(outcome.results):
                if isinstance(result, ServingError):
                    rows.append(result)
                else:
                    carried = [value[place, ...].copy() for value in outcome.next_carry]
                    rows.append([*result, *carried])
        return rows

    def _joined(
        self, rows: list[list[np.ndarray] | ServingError]
    ) -> dict[str, np.ndarray] | ServingError:
        good: list[list[np.ndarray]] = []
        for row in rows:
            if isinstance(row, ServingError):
                return row
            good.append(row)
        columns = [np.stack(column) for column in zip(*good, strict=True)]
        return {
            port.name: value.reshape(len(good), *(port.shape or [1]))
            for port, value in zip(self._outputs, columns, strict=True)
        }
