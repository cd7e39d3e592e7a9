"""How long steps take, kept as a histogram on a logarithmic axis.

Each bin is an eighth wider than the one before, so that 20 of them make a decade: microseconds and
seconds are told apart with the same precision, and a thousand steps take a hundred bytes.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from serving.errors import BundleError

LATENCY_FILE = "latency.json"
BINS_PER_DECADE = 20
MAX_LATENCY_BYTES = 1024 * 1024
_FIRST, _LAST = -3 * BINS_PER_DECADE, 10 * BINS_PER_DECADE


class LatencyHistogram(msgspec.Struct, frozen=True):
    """Counts of step times; bin k goes from `10 ** (k / 20)` to `10 ** ((k + 1) / 20)` µs."""

    first_bin: int
    counts: list[int]

    def edges_us(self) -> list[float]:
        """Returns the limits of the bins in microseconds, one more than there are counts."""
        return [
            10.0 ** ((self.first_bin + k) / BINS_PER_DECADE) for k in range(len(self.counts) + 1)
        ]


def latency_histogram(times_us: Any) -> LatencyHistogram:
    """Returns the histogram of step times.

    Args:
        times_us: times in microseconds; one below a nanosecond counts as a nanosecond.

    >>> latency_histogram([10.0, 10.5, 100.0]).counts[0]
    2
    """
    times = np.maximum(np.asarray(times_us, np.float64).reshape(-1), 1e-3)
    if not times.size:
        return LatencyHistogram(0, [])
    # What is exactly on an edge belongs above it, whatever the logarithm's last bit says.
    places = np.floor(np.log10(times) * BINS_PER_DECADE + 1e-9).astype(np.int64)
    places = np.clip(places, _FIRST, _LAST)
    first = int(places.min())
    return LatencyHistogram(first, [int(n) for n in np.bincount(places - first)])


class LatencyResult(msgspec.Struct, frozen=True):
    """Step times of one runtime at one batch size."""

    runtime: str
    batch_size: int
    steps: int
    median_s: float
    p99_s: float
    max_s: float
    histogram: LatencyHistogram
    p999_s: float | None = None
    """99.9th percentile in seconds; records of older versions lack it."""
    cpu_s: float | None = None
    """Processor time of a step on average, of all threads, in seconds; likewise."""


class LatencyRecord(msgspec.Struct, frozen=True):
    """What `nnx-ppo bench` measured of one bundle on one machine."""

    manifest_sha256: str
    """SHA-256 of the manifest of the bundle that was measured."""
    machine: dict[str, str | int]
    rate_hz: float | None
    """Rate at which steps were made, or None for one after the other."""
    results: list[LatencyResult]


def this_machine() -> dict[str, str | int]:
    """Returns what step times depend on: processor, cores, system."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def read_latency(directory: Path) -> LatencyRecord | None:
    """Reads the latencies recorded beside a bundle's manifest; None if there are none.

    Raises:
        BundleError: if the file is no such record.
    """
    data = read_side_file(directory / LATENCY_FILE, MAX_LATENCY_BYTES)
    if data is None:
        return None
    try:
        record = msgspec.json.decode(data, type=LatencyRecord)
        for result in record.results:
            check_histogram(result.histogram)
            check_finite([result.median_s, result.p99_s, result.max_s])
            check_finite([n for n in (result.p999_s, result.cpu_s) if n is not None])
    except (ValueError, RecursionError) as error:
        raise BundleError(
            directory / LATENCY_FILE, f"is no record of latencies: {error}; measure again"
        ) from error
    return record


def check_histogram(histogram: LatencyHistogram) -> None:
    """Checks a histogram from a file.

    Raises:
        ValueError: if its bins are out of all reason, or it counts below zero.
    """
    last = histogram.first_bin + len(histogram.counts)
    if (
        not (histogram.first_bin >= _FIRST and last <= _LAST + 1)
        or min(histogram.counts, default=0) < 0
    ):
        raise ValueError(f"a histogram with bins {histogram.first_bin} to {last}")


def check_finite(numbers: list[float]) -> None:
    """Checks numbers that must be neither negative nor unbounded.

    Raises:
        ValueError: naming the first that is.
    """
    for number in numbers:
        if not 0 <= number < math.inf:
            raise ValueError(f"{number} is not a number of at least 0")


def read_side_file(file: Path, limit: int) -> bytes | None:
    """Reads a file that may be beside a manifest and is not listed in it; None if it is absent.

    Raises:
        BundleError: if it cannot be read or is larger than `limit` bytes.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BundleError(file, f"unreadable: {error}") from error
    if len(data) > limit:
        raise BundleError(file, f"larger than the limit of {limit} bytes")
    return data
