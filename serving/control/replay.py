"""Runs a flight record again through any runtime and compares with what happened.

Twice: teacher forced, where each step begins with the carry that was recorded before it, so that a
difference is one step's own; and free running, where only the first carry is taken over (and those
that something else than a step had changed: a reset, say), so that differences may grow.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np

from serving import tree
from serving.control.record_file import STEP_NOT_RUN, STEP_OK, FlightRecord, check_record
from serving.denormals import flush_denormals
from serving.errors import RecordError
from serving.policy import Policy
from serving.self_test import PortComparison, compare_port
from serving.session import Session

DEFAULT_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class ReplayPass:
    """A record replayed once from its first step to its last."""

    name: str
    """"teacher forced" or "free running"."""
    identical: bool
    """Whether every action and carry has the recorded bits."""
    first_difference: int | None
    """Tick of the first step that differs in a bit."""
    ports: list[PortComparison]
    """One comparison for each action and carry tensor; `worst_step` counts the steps replayed."""

    @property
    def within(self) -> bool:
        """Whether every element was within the tolerance."""
        return all(port.passed for port in self.ports)


@dataclasses.dataclass(frozen=True)
class ReplayReport:
    """Result of `replay_record`."""

    file: str
    """The record."""
    policy: str
    """Name of the policy."""
    runtime: str
    """Runtime that replayed it."""
    recorded_runtime: str
    """Runtime that it was recorded with."""
    steps: int
    """Steps replayed."""
    skipped: int
    """Steps that could not be run when they were recorded: the observation was refused, say."""
    tolerance: float
    """Absolute and relative tolerance; 0 asks for the same bits."""
    passes: list[ReplayPass]
    """Teacher forced, then free running."""

    @property
    def passed(self) -> bool:
        """Whether both passes gave the same bits, or stayed within a tolerance above 0."""
        if self.tolerance == 0.0:
            return all(each.identical for each in self.passes)
        return all(each.within for each in self.passes)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values; an error that is not finite becomes null."""
        values = {"passed": self.passed, **dataclasses.asdict(self)}
        for each in values["passes"]:
            for port in each["ports"]:
                for key in ("max_abs_error", "max_rel_error"):
                    port[key] = port[key] if np.isfinite(port[key]) else None
        return values


def replay_record(
    policy: Policy, record: FlightRecord, *, tolerance: float | None = None
) -> ReplayReport:
    """Replays a record and compares actions and carries.

    Args:
        policy: the bundle that was running, with the runtime to try.
        record: what was recorded.
        tolerance: largest error allowed, absolute plus relative; 0 for the same bits. None for 0 on
            the runtime of the record, and 1e-5 on others, or what an artefact with fewer digits
            states.

    Returns:
        The report; `passed` is the verdict.

    Raises:
        RecordError: if the record is of another bundle or holds no step that was run, or the
            tolerance is no such number.
        ServingError: if the runtime fails.
    """
    check_record(record, policy.manifest, policy.bundle.fingerprint)
    if tolerance is None:
        same = policy.runtime_name == record.info.runtime
        tolerance = 0.0 if same else default_tolerance(policy)
    if not 0.0 <= tolerance < np.inf:
        raise RecordError(f"tolerance is {tolerance}, expected a finite number of at least 0")
    ran = np.flatnonzero(record.tensors["step/status"] != STEP_NOT_RUN)
    if not len(ran):
        reason = record.info.reason or "nothing that it says"
        raise RecordError(
            f"{record.file}: the policy was not run in any of its {record.steps} steps, so there "
            f"is nothing to replay; it was written because of {reason}. read_record gives its "
            "ticks and faults"
        )
    # What was recorded is not judged: it may be the very NaN that ended the run.
    session = policy.session(record.info.batch_size, check_finite=False)
    flushing = flush_denormals() if record.info.denormals_flushed else contextlib.nullcontext()
    with flushing:
        passes = [
            _replay(session, record, ran, tolerance, forced=forced) for forced in (True, False)
        ]
    return ReplayReport(
        file=str(record.file),
        policy=policy.name,
        runtime=policy.runtime_name,
        recorded_runtime=record.info.runtime,
        steps=len(ran),
        skipped=record.steps - len(ran),
        tolerance=tolerance,
        passes=passes,
    )


def default_tolerance(policy: Policy) -> float:
    """Returns 1e-5, or what an artefact of fewer digits says it needs."""
    stated = policy.manifest.artefacts[policy.runtime_name].details.get("parity_bound")
    bound = float(stated) if isinstance(stated, int | float) else 0.0
    return max(DEFAULT_TOLERANCE, bound)


def _replay(
    session: Session, record: FlightRecord, ran: np.ndarray, tolerance: float, *, forced: bool
) -> ReplayPass:
    manifest = session.manifest
    actual, expected = _empty_like(record, manifest, ran), _empty_like(record, manifest, ran)
    changes = record.tensors["step/carry_changes"]
    status = record.tensors["step/status"]
    for index, step in enumerate(ran.tolist()):
        if forced or index == 0 or changes[step] != changes[ran[index - 1]]:
            session.carry = _rows(record, "carry", manifest.carry_ports, step)
        before = session.carry
        session.step(_observation(session, record, step))
        session.copy_into(action=[actual[p.name][index] for p in manifest.action_ports])
        for port in manifest.action_ports:
            expected[port.name][index] = record.tensors[f"action/{port.name}"][step]
        if status[step] != STEP_OK:
            session.carry = before  # as the loop left it when it refused the step
        session.copy_into(carry=[actual[p.next_name][index] for p in manifest.carry_ports])
        following = _carry_after(record, step)
        for port in manifest.carry_ports:
            # Where something else changed the carry, what the step gave was not recorded.
            source = actual[port.next_name][index] if following is None else following[port.name]
            expected[port.next_name][index] = source
    differs = np.zeros(len(ran), np.bool_)
    for name in actual:
        differs |= _bits_differ(actual[name], expected[name])
    first = int(record.tensors["step/tick"][ran[np.argmax(differs)]]) if differs.any() else None
    return ReplayPass(
        name="teacher forced" if forced else "free running",
        identical=first is None,
        first_difference=first,
        ports=[
            compare_port(name, actual[name], expected[name], tolerance, tolerance)
            for name in actual
        ],
    )


def _empty_like(record: FlightRecord, manifest: Any, ran: np.ndarray) -> dict[str, np.ndarray]:
    sources = {port.name: f"action/{port.name}" for port in manifest.action_ports}
    sources |= {port.next_name: f"carry/{port.name}" for port in manifest.carry_ports}
    arrays = {name: record.tensors[source] for name, source in sources.items()}
    return {name: np.zeros((len(ran), *a.shape[1:]), a.dtype) for name, a in arrays.items()}


def _rows(record: FlightRecord, role: str, ports: Any, step: int) -> dict[str, np.ndarray]:
    return {port.name: record.tensors[f"{role}/{port.name}"][step] for port in ports}


def _carry_after(record: FlightRecord, step: int) -> dict[str, np.ndarray] | None:
    """The carry that was there after a step; None if it was changed before it was recorded."""
    changes = record.tensors["step/carry_changes"]
    last = step + 1 == record.steps
    if changes[step] != (record.info.final_carry_changes if last else changes[step + 1]):
        return None
    prefix = "final_carry/" if last else "carry/"
    return {
        name.removeprefix(prefix): array if last else array[step + 1]
        for name, array in record.tensors.items()
        if name.startswith(prefix)
    }


def _observation(session: Session, record: FlightRecord, step: int) -> Any:
    row = 0 if session.batch_size is None else slice(None)
    leaves = [
        # A leaf without a port is not recorded, and sessions ignore what stands there.
        None if leaf.port is None else record.tensors[f"observation/{leaf.port}"][step][row]
        for leaf in tree.leaves(session.manifest.observation)
    ]
    return tree.unflatten(session.manifest.observation, leaves)


def _bits_differ(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Whether each step's entries differ in a bit."""
    count = len(actual)
    a, b = (
        np.ascontiguousarray(array).reshape(count, -1).view(np.uint8).reshape(count, -1)
        for array in (actual, expected)
    )
    return (a != b).any(axis=1)
