"""Time one control step in every runtime that the bundle has and this environment can run.

The runtimes take turns, so that whatever else the machine does meets all of them alike. Each step
is what a robot does: hand over the observation, run, keep the carry, take the action.
"""

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.latency_plot import latency_plot
from nnx_ppo.cli.output import Output, microseconds, table
from nnx_ppo.cli.runtimes import ALL, add_runtime_option, load_runtimes
from nnx_ppo.cli.step_timing import StepTimes, back_to_back, paced
from serving.files import write_atomically
from serving.latency import LATENCY_FILE, latency_histogram, this_machine

if TYPE_CHECKING:
    from serving import Bundle, Session

EXAMPLES = """examples:
  nnx-ppo bench policy/
  nnx-ppo bench policy/ --batch-sizes 1,64 --steps 5000 --json
  nnx-ppo bench policy/ --rate-hz 200 --plot times.svg    (paced, as a robot meets it)
  nnx-ppo bench policy/ --write && nnx-ppo report policy/
"""

WARM_UP_STEPS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    add_runtime_option(parser, default=ALL)
    parser.add_argument("--steps", type=_positive, default=2000, help="steps to time [2000]")
    parser.add_argument(
        "--batch-sizes",
        type=_batch_sizes,
        default=[1],
        metavar="N,...",
        help="robots stepped together, several numbers for several rows [1]",
    )
    parser.add_argument(
        "--rate-hz",
        type=_rate,
        default=None,
        help="pace the steps as a control loop would: caches are cold after a pause; each tick is "
        "one runtime's, so that several take several times as long [back to back]",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw which share of the steps took longer than a time, as SVG; replaced if it exists",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the result in the bundle, as latency.json, for inspect and report to show",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import read_bundle

    if arguments.plot is not None and not arguments.plot.absolute().parent.is_dir():
        raise CommandError(
            f"--plot {arguments.plot}: there is no directory {arguments.plot.parent}"
        )
    bundle = read_bundle(arguments.bundle)
    policies = load_runtimes(arguments.bundle, arguments.runtime, note=output.note)
    steps, rate_hz = arguments.steps, arguments.rate_hz
    if rate_hz is not None:
        rounds = len(policies) * len(arguments.batch_sizes)
        output.note(
            f"{rounds} times {steps} steps at {rate_hz:g} Hz: {rounds * steps / rate_hz:.0f} s"
        )
    results, times = [], {}
    for batch_size in arguments.batch_sizes:
        sessions = {name: policy.session(batch_size) for name, policy in policies.items()}
        observations = golden_observations(bundle, batch_size)
        for name, taken in time_sessions(sessions, observations, steps, rate_hz).items():
            what = {"runtime": name, "batch_size": batch_size, "steps": steps}
            results.append({**what, **summary(taken)})
            times[f"{name}, batch {batch_size}"] = taken.wall_s
    if arguments.write:
        output.note(f"written to {write_latency(bundle, rate_hz, results)}")
    if arguments.plot is not None:
        pace = "back to back" if rate_hz is None else f"at {rate_hz:g} Hz"
        title = f"{bundle.manifest.name}: {steps} steps of each, {pace}"
        write_atomically(arguments.plot, latency_plot(times, title))
        output.note(f"drawn in {arguments.plot}")
    data = {
        "bundle": str(bundle.path),
        "rate_hz": rate_hz,
        "machine": this_machine(),
        "results": results,
    }
    columns = ("median_s", "p99_s", "p999_s", "max_s", "cpu_s")
    rows = [
        (
            result["runtime"],
            str(result["batch_size"]),
            *(microseconds(result[column]) for column in columns),
        )
        for result in results
    ]
    headers = ("runtime", "batch", "median", "p99", "p99.9", "worst", "CPU per step")
    output.result(data, table(headers, rows))
    return 0


def golden_observations(bundle: "Bundle", batch_size: int | None) -> list[Any]:
    """Take the golden trajectory's observations, its rows repeated to the batch size.

    Args:
        bundle: A bundle that has been read.
        batch_size: Rows, or None for the first one without a batch axis.

    Returns:
        One observation tree per step.
    """
    from serving import tree
    from serving.bundle import RESET

    steps, rows = bundle.golden[RESET].shape
    chosen = 0 if batch_size is None else np.arange(batch_size) % rows
    structure = bundle.manifest.observation
    names = [leaf.port for leaf in tree.leaves(structure)]
    # A leaf that the action does not depend on is not recorded, and ignored by sessions.
    return [
        tree.unflatten(
            structure, [None if name is None else bundle.golden[name][t][chosen] for name in names]
        )
        for t in range(steps)
    ]


def time_sessions(
    sessions: "dict[str, Session]", observations: list[Any], steps: int, rate_hz: float | None
) -> dict[str, StepTimes]:
    """Step all sessions in turn and time each step.

    Args:
        sessions: Sessions by name; each is left further than `steps`.
        observations: Batched observations, used over and over.
        steps: Timed steps of each session.
        rate_hz: Steps per second, or None for one after the other.
    """
    steppers = {name: session.step for name, session in sessions.items()}
    for step in steppers.values():
        for index in range(WARM_UP_STEPS):
            step(observations[index % len(observations)])
    if rate_hz is None:
        return back_to_back(steppers, observations, steps)
    return paced(steppers, observations, steps, rate_hz)


def summary(times: StepTimes) -> dict[str, Any]:
    """Percentiles, maximum, processor time and histogram of steps; times in seconds."""
    return {
        "median_s": float(np.median(times.wall_s)),
        "p99_s": float(np.percentile(times.wall_s, 99)),
        "p999_s": float(np.percentile(times.wall_s, 99.9)),
        "max_s": float(np.max(times.wall_s)),
        "cpu_s": times.cpu_s,
        "histogram": msgspec.to_builtins(latency_histogram(times.wall_s * 1e6)),
    }


def write_latency(bundle: "Bundle", rate_hz: float | None, results: list[dict[str, Any]]) -> Path:
    """Keep what was measured beside the manifest that it belongs to.

    Raises:
        OSError: If the bundle cannot be written.
    """
    record = {
        "manifest_sha256": bundle.fingerprint,
        "machine": this_machine(),
        "rate_hz": rate_hz,
        "results": results,
    }
    file = bundle.path / LATENCY_FILE
    write_atomically(file, json.dumps(record, indent=1).encode())
    return file


def _rate(text: str) -> float:
    try:
        rate_hz = float(text)
    except ValueError:
        rate_hz = math.nan
    if not 0.0 < rate_hz < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return rate_hz


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _batch_sizes(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]
