"""Time one control step in every runtime that the bundle has and this environment can run.

The runtimes take turns step by step, so that whatever else the machine does meets all of them
alike. Each step is what a robot does: hand over the observation, run, keep the carry, take the
action.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nnx_ppo.cli.output import Output, microseconds, table
from nnx_ppo.cli.runtimes import ALL, add_runtime_option, load_runtimes
from serving.files import write_atomically
from serving.latency import LATENCY_FILE, latency_histogram, this_machine

if TYPE_CHECKING:
    from serving import Bundle, Session

EXAMPLES = """examples:
  nnx-ppo bench policy/
  nnx-ppo bench policy/ --batch-sizes 1,64 --steps 5000 --json
  nnx-ppo bench policy/ --runtime onnx --rate-hz 200    (paced, as a robot meets it)
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
        help="pace the steps as a control loop would: caches are cold after a pause [back to back]",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the result in the bundle, as latency.json, for inspect and report to show",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import read_bundle

    bundle = read_bundle(arguments.bundle)
    policies = load_runtimes(arguments.bundle, arguments.runtime, note=output.note)
    results = []
    for batch_size in arguments.batch_sizes:
        sessions = {name: policy.session(batch_size) for name, policy in policies.items()}
        observations = golden_observations(bundle, batch_size)
        timings = interleaved_step_times(
            sessions, observations, steps=arguments.steps, rate_hz=arguments.rate_hz
        )
        results += [
            {"runtime": name, "batch_size": batch_size, "steps": arguments.steps, **summary(times)}
            for name, times in timings.items()
        ]
    rows = [
        (
            result["runtime"],
            str(result["batch_size"]),
            microseconds(result["median_s"]),
            microseconds(result["p99_s"]),
            microseconds(result["max_s"]),
        )
        for result in results
    ]
    if arguments.write:
        output.note(f"written to {write_latency(bundle, arguments.rate_hz, results)}")
    data = {
        "bundle": str(bundle.path),
        "rate_hz": arguments.rate_hz,
        "machine": this_machine(),
        "results": results,
    }
    output.result(data, table(("runtime", "batch", "median", "p99", "max"), rows))
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


def interleaved_step_times(
    sessions: "dict[str, Session]",
    observations: list[Any],
    *,
    steps: int,
    rate_hz: float | None = None,
) -> dict[str, np.ndarray]:
    """Step all sessions in turn and time each step.

    Args:
        sessions: Sessions by name; each is left `steps` and the warm-up further.
        observations: Batched observations, used over and over.
        steps: Timed steps of each session.
        rate_hz: Rounds per second, or None for no pauses.

    Returns:
        Seconds, `[steps]` float64, by name.
    """
    for session in sessions.values():
        for step in range(WARM_UP_STEPS):
            session.step(observations[step % len(observations)])
    times = {name: np.zeros(steps) for name in sessions}
    clock = time.perf_counter
    start = clock()
    for step in range(steps):
        observation = observations[step % len(observations)]
        if rate_hz is not None:
            time.sleep(max(0.0, start + step / rate_hz - clock()))
        for name, session in sessions.items():
            before = clock()
            session.step(observation)
            times[name][step] = clock() - before
    return times


def summary(times: np.ndarray) -> dict[str, Any]:
    """Median, 99th percentile, maximum and histogram of step times in seconds."""
    return {
        "median_s": float(np.median(times)),
        "p99_s": float(np.percentile(times, 99)),
        "max_s": float(np.max(times)),
        "histogram": msgspec.to_builtins(latency_histogram(times * 1e6)),
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
