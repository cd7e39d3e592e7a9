"""The last seconds of a run in memory, written to a file when something goes wrong.

Two rings of arrays are allocated before the run: one of policy steps (carry before the step,
observation as the policy took it, action as it gave it) and one of ticks (what was sent, when, and
what went wrong). Recording copies into them and allocates nothing.

The control thread never touches the disk. To write while the run goes on it exchanges the rings for
a second pair and describes the faults so far, a fraction of a millisecond in all, and a thread of
its own writes the first pair; the record after that one begins where it ended. While that thread is
busy no other record is begun. What is in memory when a fault has ended the run is written after the
safe action was sent.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from serving.control.faults import FaultEvent
from serving.control.realtime import leave_real_time
from serving.control.record_file import (
    STEP_NOT_RUN,
    RecordInfo,
    write_record,
)
from serving.control.state import MODE_NUMBERS, Run
from serving.errors import LoopError
from serving.manifest import Manifest, Port
from serving.session import Session
from serving.tensors import byte_count

ASKED_FOR = "asked for"


@dataclasses.dataclass(frozen=True)
class FlightRecorder:
    """What is recorded, and where it is written."""

    directory: str | Path
    """Where records are written, one file each; made if it is not there."""
    seconds: float = 10.0
    """How much a record holds."""
    at_end: bool = False
    """Write the last seconds of every run; False for those with a fault only."""
    max_files: int = 10
    """Records that one run may write, so that a fault in every cycle does not fill the disk. The
    last of them is kept for the end of the run, unless it is the only one."""
    max_bytes: int = 512 * 1024 * 1024
    """Most memory that may be taken; a run that needs more is refused."""

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            LoopError: naming the field.
        """
        if not 0.0 < self.seconds < math.inf:
            raise LoopError(f"seconds is {self.seconds!r}, expected a positive number")
        if self.max_files < 1:
            raise LoopError(f"max_files is {self.max_files!r}, expected at least 1")


class Ring:
    """Arrays [capacity, ...] of which the last entries count."""

    def __init__(self, capacity: int, arrays: dict[str, np.ndarray]) -> None:
        self.capacity = capacity
        self.arrays = arrays
        self.count = 0
        # Every page is touched now, so that none has to be fetched during the run.
        for array in arrays.values():
            array.fill(0)

    def next_place(self) -> int:
        """Returns where to write the next entry, which takes the place of the oldest."""
        place = self.count % self.capacity
        self.count += 1
        return place

    @property
    def place(self) -> int:
        """Where the newest entry is."""
        return (self.count - 1) % self.capacity

    def parts(self, name: str) -> list[np.ndarray]:
        """Returns an array's entries in order of time, in one or two pieces and without a copy."""
        array = self.arrays[name]
        if self.count <= self.capacity:
            return [array[: self.count]]
        begin = self.count % self.capacity
        return [array[begin:], array[:begin]]


class Rings:
    """One pair of rings: policy steps and ticks."""

    def __init__(
        self, manifest: Manifest, rows: int, steps: int, ticks: int, action_size: int
    ) -> None:
        def arrays(role: str, ports: list[Port]) -> dict[str, np.ndarray]:
            return {
                f"{role}/{port.name}": np.empty((steps, rows, *port.shape), port.dtype)
                for port in ports
            }

        carry = arrays("carry", list(manifest.carry_ports))
        observation = arrays("observation", manifest.observation_ports)
        action = arrays("action", manifest.action_ports)
        self.steps = Ring(
            steps,
            {
                "step/tick": np.empty(steps, np.int64),
                "step/time_s": np.empty(steps, np.float64),
                "step/carry_changes": np.empty(steps, np.int64),
                "step/status": np.empty(steps, np.uint8),
                **carry,
                **observation,
                **action,
            },
        )
        self.ticks = Ring(
            ticks,
            {
                "tick/tick": np.empty(ticks, np.int64),
                "tick/deadline_s": np.empty(ticks, np.float64),
                "tick/woken_s": np.empty(ticks, np.float64),
                "tick/ended_s": np.empty(ticks, np.float64),
                "tick/sent": np.empty((ticks, action_size), np.float64),
                "tick/mode": np.empty(ticks, np.uint8),
                "tick/faults": np.empty(ticks, np.uint16),
            },
        )
        self.final_carry = {
            f"final_carry/{port.name}": np.zeros((rows, *port.shape), port.dtype)
            for port in manifest.carry_ports
        }
        self._carry = [list(row) for row in zip(*carry.values(), strict=True)] or [[]] * steps
        self._observation = [list(row) for row in zip(*observation.values(), strict=True)]
        self._action = [list(row) for row in zip(*action.values(), strict=True)]

    def carry_at(self, place: int) -> list[np.ndarray]:
        """Returns views of one entry of the carry, in port order."""
        return self._carry[place]

    def observation_at(self, place: int) -> list[np.ndarray]:
        """Returns views of one entry of the observation, in port order."""
        return self._observation[place] if self._observation else []

    def action_at(self, place: int) -> list[np.ndarray]:
        """Returns views of one entry of the action, in port order."""
        return self._action[place]

    def parts(self) -> dict[str, list[np.ndarray]]:
        """Returns all arrays by name, each in one or two pieces in order of time."""
        return {name: ring.parts(name) for ring in (self.steps, self.ticks) for name in ring.arrays}

    def clear(self) -> None:
        """Forgets all entries."""
        self.steps.count = self.ticks.count = 0


class Recording:
    """The recorder of one run. All methods are for the control thread.

    Args:
        settings: what the user asked for.
        session: the loop's.
        rate_hz: ticks per second.
        policy_every: ticks for each step of the policy.
        action_size: floating-point elements of an action.
    """

    def __init__(
        self,
        settings: FlightRecorder,
        session: Any,
        *,
        rate_hz: float,
        policy_every: int,
        action_size: int,
    ) -> None:
        if not isinstance(session, Session):
            raise LoopError(
                f"a {type(session).__name__} cannot be recorded; give the loop a serving.Session"
            )
        self._settings = settings
        self._session = session
        ticks = max(2, math.ceil(settings.seconds * rate_hz))
        steps = max(2, math.ceil(ticks / policy_every))
        manifest = session.manifest
        rows = session.batch_size or 1
        ports = [*manifest.carry_ports, *manifest.observation_ports, *manifest.action_ports]
        needed = 2 * (steps * (rows * byte_count(ports) + 25) + ticks * (8 * action_size + 35))
        if needed > settings.max_bytes:
            raise LoopError(
                f"{settings.seconds} s of this policy take {needed / 1e6:.0f} MB of memory, "
                f"allowed are {settings.max_bytes / 1e6:.0f} MB; record less, or raise max_bytes"
            )
        self._rings, self._spare = (
            Rings(manifest, rows, steps, ticks, action_size) for _ in range(2)
        )
        self._info = RecordInfo.of_session(session, rate_hz=rate_hz, policy_every=policy_every)
        self.files: list[str] = []
        self.notes: list[str] = []
        """Why a record could not be written."""
        self.wanted = False
        """Set from anywhere to have the record written after the cycle in progress."""
        self._handed_over = False
        self._pending: str | None = None
        """The fault that is to be in the next record."""
        self._job: tuple[Rings, RecordInfo] | None = None
        self._closing = False
        self._wake = threading.Semaphore(0)
        self._writer: threading.Thread | None = None

    def start(self, *, denormals_flushed: bool) -> None:
        """Begins a run: starts the thread that writes."""
        self._info = msgspec.structs.replace(self._info, denormals_flushed=denormals_flushed)
        self._closing = self.wanted = self._handed_over = False
        self._pending = None
        self.files, self.notes = [], []
        self._rings.clear()
        self._spare.clear()
        self._writer = threading.Thread(target=self._write_when_asked, name="flight recorder")
        self._writer.start()

    def before_step(self, tick: int, time_s: float) -> None:
        """Records the carry that a step begins with."""
        steps = self._rings.steps
        place = steps.next_place()
        steps.arrays["step/tick"][place] = tick
        steps.arrays["step/time_s"][place] = time_s
        steps.arrays["step/carry_changes"][place] = self._session.carry_changes
        steps.arrays["step/status"][place] = STEP_NOT_RUN
        self._session.copy_into(carry=self._rings.carry_at(place))

    def after_step(self, status: int) -> None:
        """Records what the step took and gave."""
        steps = self._rings.steps
        place = steps.place
        steps.arrays["step/status"][place] = status
        self._session.copy_into(
            observation=self._rings.observation_at(place), action=self._rings.action_at(place)
        )

    def after_tick(
        self, run: Run, deadline_s: float, woken_s: float, ended_s: float, sent: np.ndarray
    ) -> None:
        """Records a cycle that has ended, or was ended by a fault."""
        arrays = self._rings.ticks.arrays
        place = self._rings.ticks.next_place()
        arrays["tick/tick"][place] = run.tick
        arrays["tick/deadline_s"][place] = deadline_s
        arrays["tick/woken_s"][place] = woken_s
        arrays["tick/ended_s"][place] = ended_s
        arrays["tick/sent"][place] = sent
        arrays["tick/mode"][place] = MODE_NUMBERS[run.mode]
        arrays["tick/faults"][place] = run.fault_bits

    def after_cycle(self, run: Run) -> None:
        """Hands the record over when a fault begins, not again while it lasts, or on request."""
        reason, run.dump_reason = run.dump_reason, None
        if reason is not None and not run.in_fault and self._pending is None:
            self._pending = reason
        run.in_fault = reason is not None
        ticks = self._rings.ticks
        # After the first record faults wait until the ring is full: nothing of them is lost, and a
        # fault in every other cycle does not write all records that a run may have in a second.
        due = self._pending is not None and (not self._handed_over or ticks.count >= ticks.capacity)
        if (due or self.wanted) and self.dump(
            self._pending or ASKED_FOR, run.tally.faults.events()
        ):
            self._pending, self.wanted, self._handed_over = None, False, True

    def dump(self, reason: str, events: list[FaultEvent]) -> bool:
        """Hands what has been recorded to the writing thread; False if that cannot be done now."""
        if self._job is not None or not self._rings.steps.count:
            return False
        if len(self.files) >= max(1, self._settings.max_files - 1):
            return False
        self._job = (self._rings, self._described(reason, events))
        self._rings, self._spare = self._spare, self._rings
        self._wake.release()
        return True

    def close(self, run: Run) -> None:
        """Ends the run; writes what is in memory if there is a reason to. Blocks for the disk."""
        self._closing = True
        self._wake.release()
        if self._writer is not None:
            self._writer.join()
        reason = None
        if run.ended_by is not None:
            reason = f"{run.ended_by.kind}: {run.ended_by}"
        elif self._pending is not None or self.wanted:
            reason = self._pending or ASKED_FOR
        elif self._settings.at_end:
            reason = "the end of the run"
        # Ticks without a step say something too: a read that failed until the run was given up.
        if reason is not None and self._rings.ticks.count:
            if len(self.files) < self._settings.max_files:
                self._write(self._rings, self._described(reason, run.tally.faults.events()))
            else:
                limit = self._settings.max_files
                self.notes.append(f"no flight record of the run's end: max_files is {limit}")
        run.tally.records, run.tally.notes[:0] = self.files, self.notes

    def _described(self, reason: str, events: list[FaultEvent]) -> RecordInfo:
        """Notes the carry that the next step would begin with, and what is known of the run."""
        self._session.copy_into(carry=list(self._rings.final_carry.values()))
        return msgspec.structs.replace(
            self._info,
            reason=reason,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            faults=[dataclasses.asdict(event) for event in events],
            final_carry_changes=self._session.carry_changes,
        )

    def _write_when_asked(self) -> None:
        leave_real_time()
        while True:
            self._wake.acquire()
            if self._job is not None:
                self._write(*self._job)
                self._job[0].clear()
                self._job = None
            elif self._closing:
                return

    def _write(self, rings: Rings, info: RecordInfo) -> None:
        directory = Path(self._settings.directory)
        name = "".join(c if c.isalnum() else "-" for c in self._session.manifest.name)
        stamp = info.created.replace(":", "").replace("-", "")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(len(self.files)):
                file = directory / f"{name}-{stamp}-{number}.safetensors"
                if not file.exists():
                    break
            pieces = rings.parts()
            pieces |= {name: [array] for name, array in rings.final_carry.items()}
            write_record(file, pieces, info)
            self.files.append(str(file))
        except (OSError, ValueError) as error:
            self.notes.append(f"no flight record was written: {type(error).__name__}: {error}")
