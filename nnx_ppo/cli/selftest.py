"""Replay the bundle's golden trajectory on this machine and compare every action and carry.

The trajectory was recorded from the network when the bundle was exported, with resets in the
middle. Exit status 1 if a runtime strays from it.
"""

import argparse
from pathlib import Path

from nnx_ppo.cli.output import Output, table
from nnx_ppo.cli.runtimes import add_runtime_option, load_runtimes

EXAMPLES = """examples:
  nnx-ppo selftest policy/
  nnx-ppo selftest policy/ --runtime all --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    add_runtime_option(parser, default="onnx")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import self_test

    policies = load_runtimes(arguments.bundle, arguments.runtime, note=output.note)
    reports = {runtime: self_test(policy) for runtime, policy in policies.items()}
    passed = all(report.passed for report in reports.values())
    data = {
        "passed": passed,
        "runtimes": {runtime: report.to_json() for runtime, report in reports.items()},
    }
    rows = []
    for runtime, report in reports.items():
        worst = max(report.ports, key=lambda port: (not port.passed, port.max_abs_error))
        rows.append(
            (
                runtime,
                "passed" if report.passed else "FAILED",
                str(report.steps),
                f"{worst.max_abs_error:.1e}",
                worst.name,
                str(worst.worst_step),
            )
        )
    headers = ("runtime", "result", "steps", "worst error", "tensor", "at step")
    output.result(data, table(headers, rows))
    return 0 if passed else 1
