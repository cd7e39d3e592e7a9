"""How long an export takes, and the proof that all formats agree.

    pip install --editable '.[all]'
    python benchmarks/export_time.py

For each network of `networks.py`, in one process after all imports: `export_policy` to ONNX alone,
to all formats, and `verify_parity` over 1,000 steps at batch 1, 3 and 64. The first case of a
process also pays what TensorFlow and ONNX do only once, so it is done once more at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import networks
import onnxruntime  # noqa: F401  (imported before the clock starts)
import tensorflow  # noqa: F401
import tf2onnx  # noqa: F401

from export import export_policy, verify_parity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="steps of the proof [1000]")
    parser.add_argument("--case", action="append", choices=list(networks.CASES), help="[all]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    cases = arguments.case or list(networks.CASES)
    rows = [measure(case, arguments.steps) for case in [*cases, cases[0]]]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        f"{'case':<24}{'ONNX':>8}{'all formats':>13}{'parity':>9}{'worst error':>13}{'verdict':>9}"
    )
    for row in rows:
        seconds = "".join(f"{row[key]:>{width}.1f} s" for key, width in COLUMNS.items())
        verdict = "passed" if row["passed"] else "FAILED"
        print(f"{row['case']:<24}{seconds}{row['worst']:>13.1e}{verdict:>9}")


COLUMNS = {"onnx_s": 6, "all_s": 11, "parity_s": 7}
"""What is printed, with the width of each number."""


def measure(case: str, steps: int) -> dict[str, float | str]:
    """Returns seconds of each stage, the proof's verdict and its largest error."""
    network, observation = networks.build(case)
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        export_policy(network, observation, Path(directory) / "onnx", formats=["onnx"])
        with_onnx = time.perf_counter()
        bundle = export_policy(network, observation, Path(directory) / "all")
        with_all = time.perf_counter()
        report = verify_parity(bundle, network, steps=steps)
        proven = time.perf_counter()
    return {
        "case": case,
        "onnx_s": with_onnx - start,
        "all_s": with_all - with_onnx,
        "parity_s": proven - with_all,
        "passed": report.passed,
        "worst": max(report.worst_error(name) for name in report.artefact_bytes),
    }


if __name__ == "__main__":
    main()
