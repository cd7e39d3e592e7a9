"""Small plots as SVG, each readable at the width of a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from export.report.svg import element
from serving.latency import BINS_PER_DECADE, LatencyHistogram
from serving.overview import duration
from serving.parity_record import Comparison, ParityRecord

WIDTH, LEFT, RIGHT = 340.0, 42.0, 10.0
LOWEST_ERROR = 1e-9
"""Errors below it, none among them, are drawn at the bottom."""


def error_plot(parity: ParityRecord, runtime: str) -> Markup:
    """Draw the largest action error over time of an artefact, on a logarithmic axis.

    Both modes, each at the worst of its batch sizes; the bound as a dashed line.
    """
    height, top, bottom = 178.0, 10.0, 26.0
    mine = [c for c in parity.comparisons if c.runtime == runtime]
    bound = mine[0].tolerance
    # One axis for all artefacts, so that they compare.
    bounds = [comparison.tolerance for comparison in parity.comparisons]
    errors_of_all = [e for c in parity.comparisons for e in c.error_over_time]
    # What is infinite is drawn at the top.
    worst = max([*bounds, *(e for e in errors_of_all if math.isfinite(e))])
    high = math.ceil(math.log10(worst) + 0.2) if worst > 0 else -2
    low = round(math.log10(LOWEST_ERROR))

    def y(error: float) -> float:
        shown = min(max(error, LOWEST_ERROR), 10.0**high)
        level = (math.log10(shown) - low) / max(high - low, 1)
        return top + (height - top - bottom) * (1.0 - min(max(level, 0.0), 1.0))

    parts = []
    every = max(1, math.ceil((high - low) / 5))
    for power in range(low, high + 1, every):
        parts += _grid_line(y(10.0**power), f"≤1e{power}" if power == low else f"1e{power}")
    parts.append(_dashed(LEFT, WIDTH - RIGHT, y(bound), "bound"))
    for mode in ("teacher_forced", "free_running"):
        errors = _worst_over_batches([c for c in mine if c.mode == mode])
        if errors:
            parts.append(_polyline(errors, y, mode.replace("_", "-")))
    parts += _step_axis(height, parity.steps)
    label = (
        f"Largest action error of {runtime} over {parity.steps} steps: "
        f"{max((e for c in mine for e in c.error_over_time), default=0.0):.1e} at most, "
        f"bound {bound:.0e}"
    )
    return _plot(height, label, *parts)


def _worst_over_batches(comparisons: list[Comparison]) -> list[float]:
    profiles = [comparison.error_over_time for comparison in comparisons]
    length = min((len(profile) for profile in profiles), default=0)
    return [max(profile[t] for profile in profiles) for t in range(length)]


def latency_plot(
    histogram: LatencyHistogram,
    median_us: float,
    p99_us: float,
    span_us: tuple[float, float],
    label: str,
) -> Markup:
    """Draw a histogram of step times on a logarithmic axis.

    Args:
        histogram: The counts.
        median_us: Median, microseconds.
        p99_us: 99th percentile.
        span_us: Limits of the axis, so that several plots compare.
        label: What is shown, for those who cannot see it.
    """
    height, top, bottom = 132.0, 16.0, 26.0
    low, high = (math.log10(limit) for limit in span_us)

    def x(time_us: float) -> float:
        level = (math.log10(max(time_us, 1e-3)) - low) / max(high - low, 1e-9)
        return LEFT / 3 + (WIDTH - LEFT / 3 - RIGHT) * min(max(level, 0.0), 1.0)

    edges, largest = histogram.edges_us(), max(histogram.counts, default=1) or 1
    floor = height - bottom
    bars = []
    for count, begin, end in zip(histogram.counts, edges[:-1], edges[1:], strict=True):
        if count:
            # What happened once in thousands of steps is what a robot stumbles over: never nothing.
            tall = max(2.0, (floor - top) * count / largest)
            bars.append(
                element(
                    "rect",
                    element("title", f"{duration(begin)} to {duration(end)}: {count:,} steps"),
                    x=x(begin) + 0.5,
                    y=floor - tall,
                    width=max(x(end) - x(begin) - 1.0, 1.0),
                    height=tall,
                    class_="bar",
                )
            )
    marks = []
    for time_us, text in ((median_us, "median"), (p99_us, "99 %")):
        # The two are apart where each stands on its outer side.
        at = x(time_us)
        before = at > 55.0 if text == "median" else at > WIDTH - 45.0
        marks.append(element("line", x1=at, x2=at, y1=top - 4, y2=floor, class_="mark"))
        marks.append(
            element(
                "text",
                text,
                x=at + (-4.0 if before else 4.0),
                y=top - 4,
                class_="mark",
                text_anchor="end" if before else "start",
            )
        )
    ticks = []
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = x(10.0**power)
        ticks.append(element("line", x1=at, x2=at, y1=floor, y2=floor + 4, class_="axis"))
        anchor = "middle"
        if at > WIDTH - 24:
            anchor = "end"
        elif at < 16:
            anchor = "start"
        ticks.append(
            element("text", _decade(power), x=at, y=height - 8, text_anchor=anchor, class_="tick")
        )
    axis = element("line", x1=x(span_us[0]), x2=WIDTH - RIGHT, y1=floor, y2=floor, class_="axis")
    return _plot(height, label, *bars, axis, *ticks, *marks)


def _decade(power: int) -> str:
    unit, base = ("µs", 0) if power < 3 else ("ms", 3) if power < 6 else ("s", 6)
    return f"{10.0 ** (power - base):g} {unit}"


def span_of(histograms: Sequence[LatencyHistogram]) -> tuple[float, float]:
    """Return an axis from a half decade below the fastest step to one above the slowest."""
    half = BINS_PER_DECADE // 2
    first = min((h.first_bin for h in histograms), default=0) - 2
    last = max((h.first_bin + len(h.counts) for h in histograms), default=half) + 2
    # At least one tick with a number has to lie on the axis.
    first = min(first, math.floor(last / BINS_PER_DECADE) * BINS_PER_DECADE - 1)
    return 10.0 ** (first / BINS_PER_DECADE), 10.0 ** (last / BINS_PER_DECADE)


def action_plot(values: np.ndarray, reset: np.ndarray, label: str) -> Markup:
    """Draw recorded actions of one robot over time.

    Args:
        values: `[T, elements]`; the first eight elements are drawn.
        reset: `[T]` bool, drawn as dashed lines.
        label: What is shown, for those who cannot see it.
    """
    height, top, bottom = 160.0, 10.0, 26.0
    drawn = np.asarray(values, np.float64)[:, :8]
    finite = drawn[np.isfinite(drawn)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high - low < 1e-12:
        low, high = low - 1.0, high + 1.0

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1.0 - (value - low) / (high - low))

    parts = []
    for value in (low, (low + high) / 2, high):
        parts += _grid_line(y(value), f"{value:.2g}")
    steps = drawn.shape[0]
    for t in np.flatnonzero(reset):
        at = LEFT + (WIDTH - LEFT - RIGHT) * t / max(steps - 1, 1)
        parts.append(element("line", x1=at, x2=at, y1=top, y2=height - bottom, class_="reset"))
    for index in range(drawn.shape[1]):
        column = [float(v) if np.isfinite(v) else low for v in drawn[:, index]]
        parts.append(_polyline(column, y, f"series s{index}"))
    parts += _step_axis(height, steps)
    return _plot(height, label, *parts)


def _grid_line(y: float, text: str) -> list[Markup]:
    return [
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
        element("text", text, x=LEFT - 6, y=y + 3.5, text_anchor="end", class_="tick"),
    ]


def _dashed(x1: float, x2: float, y: float, kind: str) -> Markup:
    return element("line", x1=x1, x2=x2, y1=y, y2=y, class_=kind)


def _polyline(values: Sequence[float], y: Any, kind: str) -> Markup:
    step = (WIDTH - LEFT - RIGHT) / max(len(values) - 1, 1)
    points = " ".join(f"{LEFT + index * step:.1f},{y(v):.1f}" for index, v in enumerate(values))
    return element("polyline", points=points, class_=f"line {kind}")


def _step_axis(height: float, steps: int) -> list[Markup]:
    return [
        element("text", "step 0", x=LEFT, y=height - 8, class_="tick"),
        element(
            "text",
            f"step {steps - 1:,}",
            x=WIDTH - RIGHT,
            y=height - 8,
            text_anchor="end",
            class_="tick",
        ),
    ]


def _plot(height: float, label: str, *parts: Markup) -> Markup:
    return element(
        "svg",
        element("title", label),
        *parts,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        class_="plot",
        role="img",
        aria_label=label,
    )
