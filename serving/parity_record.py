"""Reading `parity.json`: what was compared with the network, and how close each artefact came.

The file is not listed in the manifest, since it is written after the bundle. It names the manifest
it belongs to, so that a copy from another bundle is not taken for a proof.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from serving.errors import BundleError
from serving.latency import LatencyHistogram, check_finite, check_histogram, read_side_file

PARITY_FILE = "parity.json"
REPORT_VERSION = 3
MAX_PARITY_BYTES = 64 * 1024 * 1024

_NOT_FINITE = {"inf": math.inf, "nan": math.nan}
_ERRORS = ("max_abs_error", "max_rel_error", "error_over_time")


class PortResult(msgspec.Struct, frozen=True):
    """How close one output came to the reference."""

    name: str
    """Tensor name, such as `action` or `next_carry.1.hidden`."""
    max_abs_error: float
    """Largest absolute difference; infinite where one side is not finite and the other differs."""
    max_rel_error: float
    """Largest difference divided by the reference's magnitude, where that is not zero."""
    max_ulp: int
    """Largest distance in representable float32 numbers."""
    worst_step: int
    """Step at which the bound was exceeded most, or approached closest."""
    worst_row: int
    """Row of the batch at which it was."""
    equal_nans: int
    """Elements that are NaN on both sides."""
    violations: int
    """Elements outside the bound."""
    rounding_effect: float = 0.0
    """The most that was added to the bound of a step: how far rounding alone may have moved this
    output of the network itself up to there. Measured only where a free running artefact left its
    bound; else 0."""


class Comparison(msgspec.Struct, frozen=True):
    """One artefact in one mode at one batch size."""

    runtime: str
    mode: str
    """`free_running` or `teacher_forced`."""
    batch_size: int
    tolerance: float
    """Absolute bound, and relative bound added to it."""
    ports: list[PortResult]
    step_median_us: float
    """Median time of a session's step, microseconds, on a machine that does other work too."""
    step_p99_us: float
    """99th percentile of the same."""
    error_over_time: list[float]
    """Largest absolute error of the action in consecutive slices of the trajectory; infinite where
    one side is not finite and the other differs."""
    step_histogram: LatencyHistogram | None = None
    """Times of all steps; None in records of version 1."""

    @property
    def passed(self) -> bool:
        """Whether every element of every port is within the bound."""
        return not any(port.violations for port in self.ports)

    @property
    def rounding_effect(self) -> float:
        """The largest one of the ports."""
        return max(port.rounding_effect for port in self.ports)

    @property
    def worst(self) -> PortResult:
        """The port with most violations, then with the largest absolute error."""
        return max(self.ports, key=lambda port: (port.violations, port.max_abs_error))


class ParityRecord(msgspec.Struct, frozen=True):
    """Everything that `parity.json` says."""

    report_version: int
    policy: str
    steps: int
    seed: int
    observations: str
    comparisons: list[Comparison]
    manifest_sha256: str = ""
    """SHA-256 of the manifest of the bundle that was compared."""

    @property
    def passed(self) -> bool:
        """The verdict: every comparison within its bounds."""
        return all(comparison.passed for comparison in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The comparison that failed most, or came closest to its bound."""
        return max(
            self.comparisons,
            key=lambda c: (
                c.worst.violations,
                c.worst.max_abs_error / (c.tolerance + c.worst.rounding_effect or 1e-300),
            ),
        )


def read_parity(directory: Path) -> ParityRecord | None:
    """Reads the record beside a bundle's manifest; None if there is none.

    Raises:
        BundleError: if the file is no such record.
    """
    file = directory / PARITY_FILE
    data = read_side_file(file, MAX_PARITY_BYTES)
    if data is None:
        return None
    return parse_parity(data, file)


def parse_parity(data: bytes, file: str | Path) -> ParityRecord:
    """Reads and checks the content of a record.

    Raises:
        BundleError: if it is no such record.
    """
    try:
        record = msgspec.convert(_numbers(json.loads(data)), ParityRecord)
        _check(record)
    except (ValueError, RecursionError, OverflowError) as error:
        raise BundleError(
            file, f"is no record of a comparison: {error}; run `nnx-ppo verify` again"
        ) from error
    return record


def _numbers(value: Any, key: str = "") -> Any:
    """Puts back the numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: _numbers(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item, key) for item in value]
    return _NOT_FINITE.get(value, value) if key in _ERRORS and isinstance(value, str) else value


def _check(record: ParityRecord) -> None:
    if not 1 <= record.report_version <= REPORT_VERSION:
        raise ValueError(f"report version {record.report_version} is unknown")
    if not record.comparisons or any(not comparison.ports for comparison in record.comparisons):
        raise ValueError("it compares nothing")
    for comparison in record.comparisons:
        numbers = [comparison.tolerance, comparison.step_median_us, comparison.step_p99_us]
        effects = [port.rounding_effect for port in comparison.ports]
        check_finite([*numbers, *effects])
        for error in comparison.error_over_time:
            if not error >= 0:
                raise ValueError(f"{error} is no distance")
        if comparison.step_histogram is not None:
            check_histogram(comparison.step_histogram)
