"""The carries of many robots, and one step for those of them that are ready."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from serving.bundle import Bundle
from serving.errors import SequenceLimitError, SequenceLostError, ServingError, StepError
from serving.fleet.batches import BatchedStep
from serving.runtimes.base import Runtime

SequenceId = int | str


@dataclasses.dataclass(frozen=True)
class Request:
    """One robot asks for an action."""

    sequence: SequenceId
    """By which the robot's carry is known."""
    observation: Sequence[np.ndarray]
    """One array for each observation port in order, without a batch axis."""
    start: bool = False
    """Begin with the carry of a fresh environment."""
    end: bool = False
    """Forget the sequence after this step."""
    number: int | None = None
    """How many steps of the sequence the client has seen succeed; None if it does not count."""
    reset: bool = False
    """Reset the carry as `Session.reset` does before this step, in a sequence that goes on."""


@dataclasses.dataclass
class _Sequence:
    row: int
    """Where its carry lies in the table."""
    steps: int
    """Steps that succeeded."""
    used_s: float
    """When the last request came."""


class Sequences:
    """Keeps one carry for each sequence and steps any of them together.

    A request either gives an action and advances the carry of its own sequence, or gives an error
    and leaves that carry as it was. No request changes what another one gets. Not for use by two
    threads at once.

    Args:
        bundle: the policy.
        runtime: its artefact, loaded.
        max_batch_size: most rows of one run; a bundle with a fixed batch overrules it.
        max_sequences: most carries kept; memory for them is allocated here.
        idle_timeout_s: a sequence without a request for so long gives way to a new one.
        clock: returns seconds of a clock that never steps back.
    """

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        *,
        max_batch_size: int,
        max_sequences: int,
        idle_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.manifest = bundle.manifest
        self.max_sequences = max_sequences
        self.idle_timeout_s = idle_timeout_s
        self.refused = 0
        """Requests that got an error."""
        self._clock = clock
        self._step = BatchedStep(bundle, runtime, max_batch_size=max_batch_size)
        self._initial = [bundle.initial_carry[p.name] for p in self.manifest.carry_ports]
        self._resettable = [p.reset == "initial" for p in self.manifest.carry_ports]
        self._table = [
            np.zeros((max_sequences, *value.shape), value.dtype) for value in self._initial
        ]
        # In the order of their last requests, so the one that is idle for longest comes first.
        self._sequences: OrderedDict[SequenceId, _Sequence] = OrderedDict()
        self._free = list(reversed(range(max_sequences)))

    def __len__(self) -> int:
        """Number of sequences whose carry is kept."""
        return len(self._sequences)

    def step(self, requests: Sequence[Request]) -> list[list[np.ndarray] | ServingError]:
        """Steps all sequences that ask for it, up to `max_batch_size` in one run.

        Returns:
            For each request in order its action, one array for each action port and then for each
            extra output port, without a batch axis; or what is wrong with it: ObservationError,
            SequenceLostError, SequenceLimitError, ActionError for outputs that are not finite,
            StepError if the runtime fails.
        """
        results: list[list[np.ndarray] | ServingError] = [StepError("not stepped")] * len(requests)
        batch: dict[SequenceId, int] = {}
        for index, request in enumerate(requests):
            # Two steps of one sequence follow each other.
            if request.sequence in batch or len(batch) == self._step.max_batch_size:
                self._run(batch, requests, results)
            try:
                self._admit(request)
            except ServingError as error:
                results[index] = error
            else:
                batch[request.sequence] = index
        self._run(batch, requests, results)
        self.refused += sum(isinstance(result, ServingError) for result in results)
        return results

    def _admit(self, request: Request) -> None:
        """Checks that a request belongs to a carry; makes or resets that carry if it asks so."""
        now_s = self._clock()
        name = request.sequence
        found = self._sequences.get(name)
        if request.start:
            if found is None:
                found = self._begin(name, now_s)
            found.steps = 0
            self._reset(found.row, everything=True)
        elif found is None:
            raise SequenceLostError(
                f"there is no carry for sequence {name}: it was never started, was idle for more "
                f"than {self.idle_timeout_s:g} s, has ended, or the model was started anew; begin "
                "a new sequence with the start flag"
            )
        elif now_s - found.used_s > self.idle_timeout_s:
            self._forget(name)
            raise SequenceLostError(
                f"sequence {name} was idle for {now_s - found.used_s:.1f} s, more than "
                f"{self.idle_timeout_s:g} s; begin a new sequence with the start flag"
            )
        if request.number is not None and request.number != found.steps:
            raise SequenceLostError(
                f"sequence {name} has made {found.steps} steps here, its client counts "
                f"{request.number}: a request was lost, repeated or reached another server; begin "
                "a new sequence with the start flag"
            )
        if request.reset:
            self._reset(found.row, everything=False)
        found.used_s = now_s
        self._sequences.move_to_end(name)

    def _begin(self, name: SequenceId, now_s: float) -> _Sequence:
        if not self._free:
            oldest = next(iter(self._sequences))
            if now_s - self._sequences[oldest].used_s <= self.idle_timeout_s:
                raise SequenceLimitError(
                    f"sequence {name} is not begun: {self.max_sequences} are active, as many as "
                    "may be; end one, or serve the policy with a larger --max-sequences"
                )
            self._forget(oldest)
        self._sequences[name] = found = _Sequence(self._free.pop(), 0, now_s)
        return found

    def _reset(self, row: int, *, everything: bool) -> None:
        for table, initial, resettable in zip(
            self._table, self._initial, self._resettable, strict=True
        ):
            if everything or resettable:
                table[row] = initial

    def _forget(self, name: SequenceId) -> None:
        self._free.append(self._sequences.pop(name).row)

    def _run(
        self,
        batch: dict[SequenceId, int],
        requests: Sequence[Request],
        results: list[list[np.ndarray] | ServingError],
    ) -> None:
        """Runs the sequences of `batch` together, writes their results, and empties it."""
        if not batch:
            return
        names = list(batch)
        rows = np.array([self._sequences[name].row for name in names])
        outcome = self._step.run(
            [table[rows] for table in self._table],
            [requests[index].observation for index in batch.values()],
        )
        good = np.array([not isinstance(result, ServingError) for result in outcome.results])
        if good.any():
            for table, value in zip(self._table, outcome.next_carry, strict=True):
                table[rows[good]] = value[good]
        for name, index, result in zip(names, batch.values(), outcome.results, strict=True):
            results[index] = result
            if not isinstance(result, ServingError):
                self._sequences[name].steps += 1
            if requests[index].end:
                self._forget(name)
        batch.clear()
