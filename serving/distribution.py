"""Percentiles of durations over any number of samples in constant memory."""

from __future__ import annotations

import dataclasses
import math

_SMALLEST_S = 1e-8
_RATIO = 1.01
_LOG_RATIO = math.log(_RATIO)
_COARSER = 10
_BINS = 2 + math.ceil(math.log(1e4 / _SMALLEST_S) / _LOG_RATIO)


@dataclasses.dataclass(frozen=True)
class Percentiles:
    """Summary of a set of durations; percentiles are within 1 %, all others exact."""

    count: int
    """Number of samples."""
    mean_s: float
    """Mean in seconds; 0 without samples, as are the others."""
    median_s: float
    """Median in seconds."""
    p99_s: float
    """99th percentile in seconds."""
    p999_s: float
    """99.9th percentile in seconds."""
    max_s: float
    """Largest sample in seconds."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of durations in bins that grow by a tenth, from the smallest seen to the largest."""

    edges_s: list[float]
    """Limits of the bins in seconds, one more than there are counts; the first bin has the shortest
    durations down to zero. Empty without samples."""
    counts: list[int]
    """Samples in each bin."""


class Distribution:
    """A histogram of durations with bins that grow by 1 %, from 10 ns to some hours.

    Adding takes no memory, so that a loop can run for months.

    >>> latency = Distribution()
    >>> for _ in range(9):
    ...     latency.add(0.001)
    >>> latency.add(1.0)
    >>> round(latency.quantile_s(0.5), 4), latency.summary().max_s
    (0.001, 1.0)
    """

    def __init__(self) -> None:
        self._bins = [0] * _BINS
        self._count = 0
        self._sum_s = 0.0
        self._max_s = 0.0

    def add(self, duration_s: float) -> None:
        """Adds one sample in seconds; a negative one counts as zero."""
        if duration_s > self._max_s:
            self._max_s = duration_s
        index = 0
        if duration_s > _SMALLEST_S:
            index = min(1 + int(math.log(duration_s / _SMALLEST_S) / _LOG_RATIO), _BINS - 1)
            self._sum_s += duration_s
        self._bins[index] += 1
        self._count += 1

    def quantile_s(self, fraction: float) -> float:
        """Returns the duration in seconds that `fraction` of the samples do not exceed."""
        rank = max(1, math.ceil(fraction * self._count))
        seen = 0
        for index, count in enumerate(self._bins):
            seen += count
            if seen >= rank:
                # The middle of the bin in ratio; never more than was really seen.
                middle_s = _SMALLEST_S * _RATIO ** (index - 0.5)
                return min(middle_s, self._max_s) if index else 0.0
        return 0.0

    def summary(self) -> Percentiles:
        """Returns count, mean, median, 99th and 99.9th percentile and maximum."""
        return Percentiles(
            count=self._count,
            mean_s=self._sum_s / self._count if self._count else 0.0,
            median_s=self.quantile_s(0.5),
            p99_s=self.quantile_s(0.99),
            p999_s=self.quantile_s(0.999),
            max_s=self._max_s,
        )

    def histogram(self) -> Histogram:
        """Returns the counts for a plot, in ten times fewer bins than are kept."""
        filled = [index for index, count in enumerate(self._bins) if count]
        if not filled:
            return Histogram([], [])
        first, last = filled[0] // _COARSER, filled[-1] // _COARSER
        counts = [
            sum(self._bins[place * _COARSER : (place + 1) * _COARSER])
            for place in range(first, last + 1)
        ]
        edges_s = [
            _SMALLEST_S * _RATIO ** (place * _COARSER - 1) for place in range(first, last + 2)
        ]
        return Histogram(edges_s, counts)
