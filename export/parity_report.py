"""The result of a parity check: as numbers, as a table, as a page."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from pathlib import Path
from typing import Any

from export.errors import ParityError
from serving.bundle import Bundle
from serving.files import write_atomically

PARITY_FILE = "parity.json"
REPORT_FILE = "report.html"
_REPORT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class PortResult:
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


@dataclasses.dataclass(frozen=True)
class Comparison:
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
    """Largest absolute error of the action in consecutive slices of the trajectory."""

    @property
    def passed(self) -> bool:
        """Whether every element of every port is within the bound."""
        return not any(port.violations for port in self.ports)

    @property
    def worst(self) -> PortResult:
        """The port with most violations, then with the largest absolute error."""
        return max(self.ports, key=lambda port: (port.violations, port.max_abs_error))


@dataclasses.dataclass(frozen=True)
class ParityReport:
    """What `verify_parity` found."""

    policy: str
    steps: int
    seed: int
    observations: str
    """`generated` or `recorded`."""
    comparisons: list[Comparison]
    artefact_bytes: dict[str, int]
    """Artefact → size of its files, bytes."""

    @property
    def passed(self) -> bool:
        """The verdict: every comparison within its bounds."""
        return all(comparison.passed for comparison in self.comparisons)

    def worst_error(self, runtime: str) -> float:
        """Return the largest absolute error of an artefact over all ports, free running."""
        return max(
            comparison.worst.max_abs_error
            for comparison in self.comparisons
            if comparison.runtime == runtime and comparison.mode == "free_running"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; an infinite error becomes the string `inf`."""
        return {
            "report_version": _REPORT_VERSION,
            "passed": self.passed,
            "policy": self.policy,
            "steps": self.steps,
            "seed": self.seed,
            "observations": self.observations,
            "artefact_bytes": self.artefact_bytes,
            "comparisons": [
                {**_finite(dataclasses.asdict(comparison)), "passed": comparison.passed}
                for comparison in self.comparisons
            ],
        }

    @property
    def summary(self) -> str:
        """One line per comparison, for a terminal."""
        rows = [
            ("artefact", "mode", "batch", "worst tensor", "abs error", "ulp", "step", "verdict")
        ]
        for comparison in self.comparisons:
            worst = comparison.worst
            rows.append(
                (
                    comparison.runtime,
                    comparison.mode.replace("_", " "),
                    str(comparison.batch_size),
                    worst.name,
                    f"{worst.max_abs_error:.2e}",
                    str(worst.max_ulp),
                    str(worst.worst_step),
                    "pass" if comparison.passed else f"FAIL ({worst.violations} elements)",
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_report(bundle: Bundle, report: ParityReport) -> tuple[Path, Path]:
    """Write `parity.json` and `report.html` into the bundle, each complete or not at all.

    Raises:
        ParityError: The bundle cannot be written.
    """
    parity, page = bundle.path / PARITY_FILE, bundle.path / REPORT_FILE
    text = json.dumps(report.to_json(), indent=1)
    try:
        write_atomically(parity, text.encode())
        write_atomically(page, _page(bundle, report).encode())
    except OSError as error:
        raise ParityError(
            f"the comparison is done, but its report cannot be written into {bundle.path}: "
            f"{error}; pass write=False (--no-write) to do without"
        ) from error
    return parity, page


_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.45; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid #8886; }
.pass { color: #1a8f3c; font-weight: 600; } .fail { color: #d22; font-weight: 600; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font-size: 11px; }
"""


def _page(bundle: Bundle, report: ParityReport) -> str:
    manifest = bundle.manifest
    title = html.escape(manifest.name)
    verdict = "pass" if report.passed else "fail"
    ports = "".join(
        f"<tr><td><code>{html.escape(port.name)}</code></td><td>{role}</td>"
        f"<td>{port.dtype}</td><td>{port.shape}</td></tr>"
        for role, group in (
            ("observation", manifest.observation_ports),
            ("carry", manifest.carry_ports),
            ("action", manifest.action_ports),
            ("extra output", manifest.extra_output_ports),
        )
        for port in group
    )
    plots = "".join(
        f"<h3>{html.escape(comparison.runtime)}</h3>{_plot(comparison, report.steps)}"
        for comparison in report.comparisons
        if comparison.mode == "free_running"
        and comparison.batch_size == report.comparisons[0].batch_size
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: parity</title><style>{_STYLE}</style></head><body>
<h1>{title}</h1>
<p>Parity with the JAX network: <span class="{verdict}">{verdict}</span>, over {report.steps} steps
with resets, {html.escape(report.observations)} observations.</p>
<h2>Artefacts against the network</h2>
<div class="scroll"><table>{_parity_rows(report)}</table></div>
<h2>Error of the action over time</h2><p>Free running, batch
{report.comparisons[0].batch_size}; the dashed line is the absolute bound.</p>{plots}
<h2>Tensors</h2><div class="scroll"><table>
<tr><th>name</th><th>role</th><th>dtype</th><th>shape without batch</th></tr>{ports}</table></div>
</body></html>
"""


def _parity_rows(report: ParityReport) -> str:
    heads = "artefact,size,mode,batch,worst tensor,abs,rel,ulp,step,median µs,p99 µs,verdict"
    rows = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads.split(",")) + "</tr>"]
    for comparison in report.comparisons:
        worst = comparison.worst
        verdict = "pass" if comparison.passed else "fail"
        cells = [
            html.escape(comparison.runtime),
            f"{report.artefact_bytes[comparison.runtime] / 1024:.1f} KiB",
            comparison.mode.replace("_", " "),
            str(comparison.batch_size),
            f"<code>{html.escape(worst.name)}</code>",
            f"{worst.max_abs_error:.2e}",
            f"{worst.max_rel_error:.2e}",
            str(worst.max_ulp),
            str(worst.worst_step),
            f"{comparison.step_median_us:.0f}",
            f"{comparison.step_p99_us:.0f}",
            f'<span class="{verdict}">{verdict}</span>',
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "".join(rows)


def _plot(comparison: Comparison, steps: int) -> str:
    """Draw error over time on a logarithmic axis from 1e-9 to 1e-2 (or the worst)."""
    width, height, left, bottom = 720, 180, 50, 24
    errors = comparison.error_over_time
    top = max(-2.0, math.ceil(math.log10(max([*errors, comparison.tolerance]))))
    low = -9.0

    def y(value: float) -> float:
        level = (math.log10(max(value, 10.0**low)) - low) / (top - low)
        return (height - bottom) * (1.0 - min(level, 1.0)) + 4

    def x(index: int) -> float:
        return left + (width - left - 8) * index / max(len(errors) - 1, 1)

    line = " ".join(f"{x(i):.1f},{y(error):.1f}" for i, error in enumerate(errors))
    bound = y(comparison.tolerance)
    ticks = "".join(
        f'<text x="4" y="{y(10.0**power) + 4:.0f}">1e{power}</text>'
        for power in range(int(low), int(top) + 1, 2)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="error over time">{ticks}'
        f'<line x1="{left}" x2="{width - 8}" y1="{bound:.1f}" y2="{bound:.1f}" stroke="#d22" '
        'stroke-dasharray="5 4"/>'
        f'<polyline points="{line}" fill="none" stroke="#3b82f6" stroke-width="1.5"/>'
        f'<text x="{left}" y="{height - 6}">step 0</text>'
        f'<text x="{width - 70}" y="{height - 6}">step {steps}</text></svg>'
    )
