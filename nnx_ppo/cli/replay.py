"""Run a flight record again, through the runtime that flew or any other, and compare.

A control loop writes a record when something goes wrong (nnx-ppo run --record DIR). Each step is
replayed twice: from the carry that was recorded before it (teacher forced), and from the first
carry on (free running). The runtime that was recorded has to give the same bits, others stay within
1e-5. Exit status 1 if one does not.
"""

import argparse
from pathlib import Path

from nnx_ppo.cli.output import Output, table
from nnx_ppo.cli.runtimes import load_runtimes

EXAMPLES = """examples:
  nnx-ppo replay records/policy-20260801T031500Z-0.safetensors --bundle policy/
  nnx-ppo replay RECORD --bundle policy/ --runtime all --json
  nnx-ppo replay RECORD --bundle policy/ --tolerance 1e-6   (recorded on another machine)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", type=Path, help="file of the record")
    parser.add_argument(
        "--bundle", type=Path, required=True, help="directory of the bundle that was running"
    )
    parser.add_argument(
        "--runtime",
        metavar="NAME,...",
        help="runtimes to replay with, or all [the one that was recorded]",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="ERROR",
        help="largest error, absolute plus relative; 0 for the same bits [0 for the runtime that "
        "was recorded, 1e-5 for others]",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import read_record, replay_record

    record = read_record(arguments.record)
    info = record.info
    runtimes = info.runtime if arguments.runtime is None else arguments.runtime
    policies = load_runtimes(arguments.bundle, runtimes, note=output.note)
    reports = {
        name: replay_record(policy, record, tolerance=arguments.tolerance)
        for name, policy in policies.items()
    }
    output.note(
        f"recorded {info.created} with {info.runtime} at {info.rate_hz:g} Hz because of "
        f"{info.reason or 'nothing that it says'}"
    )
    passed = all(report.passed for report in reports.values())
    data = {
        "passed": passed,
        "record": {
            "file": str(record.file),
            "policy": info.policy,
            "runtime": info.runtime,
            "reason": info.reason,
            "created": info.created,
            "rate_hz": info.rate_hz,
            "policy_every": info.policy_every,
            "steps": record.steps,
            "faults": info.faults,
            "versions": info.versions,
            "machine": info.machine,
        },
        "runtimes": {name: report.to_json() for name, report in reports.items()},
    }
    rows = []
    for name, report in reports.items():
        for each in report.passes:
            worst = max(each.ports, key=lambda port: (not port.passed, port.max_abs_error))
            kept = each.identical if report.tolerance == 0.0 else each.within
            first = each.first_difference
            rows.append(
                (
                    name,
                    each.name,
                    "passed" if kept else "FAILED",
                    str(report.steps),
                    "the same" if first is None else f"differ from tick {first}",
                    f"{worst.max_abs_error:.1e}",
                    worst.name,
                )
            )
    headers = ("runtime", "pass", "result", "steps", "bits", "worst error", "tensor")
    output.result(data, table(headers, rows, words=("pass", "bits", "tensor")))
    return 0 if passed else 1
