"""The result of a parity check, as numbers and as a table."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import msgspec

from serving.files import write_atomically
from serving.parity_record import PARITY_FILE, REPORT_VERSION, Comparison


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
    manifest_sha256: str = ""
    """SHA-256 of the manifest of the bundle that was compared."""

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
            "report_version": REPORT_VERSION,
            "passed": self.passed,
            "policy": self.policy,
            "steps": self.steps,
            "seed": self.seed,
            "observations": self.observations,
            "manifest_sha256": self.manifest_sha256,
            "artefact_bytes": self.artefact_bytes,
            "comparisons": [
                {**_finite(msgspec.to_builtins(comparison)), "passed": comparison.passed}
                for comparison in self.comparisons
            ],
        }

    @property
    def summary(self) -> str:
        """One line per comparison, for a terminal; a bound's second part is the rounding effect."""
        heads = "artefact,mode,batch,worst tensor,abs error,bound,ulp,step,verdict"
        rows: list[tuple[str, ...]] = [tuple(heads.split(","))]
        for comparison in self.comparisons:
            worst = comparison.worst
            rows.append(
                (
                    comparison.runtime,
                    comparison.mode.replace("_", " "),
                    str(comparison.batch_size),
                    worst.name,
                    f"{worst.max_abs_error:.2e}",
                    _bound(comparison),
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


def _bound(comparison: Comparison) -> str:
    effect = comparison.worst.rounding_effect
    return f"{comparison.tolerance:.0e}" + (f" + {effect:.0e}" if effect else "")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_parity(directory: Path, report: ParityReport) -> Path:
    """Write `parity.json` into a bundle, complete or not at all."""
    file = directory / PARITY_FILE
    write_atomically(file, json.dumps(report.to_json(), indent=1).encode())
    return file
