"""Run a bundle in a control loop at a fixed rate.

With --plant the observations come from a simulator in a process of its own (nnx-ppo simulate), and
the actions go there. Without it the bundle's golden observations are replayed, which shows whether
this machine keeps the rate. The safe action of the bundle, if it has one, is sent last, also after
Ctrl-C and SIGTERM (exit status 130 and 143). Exit status 1 if more deadlines are missed than
--miss-budget allows, or a fault to which the reaction is "stop" ended the run.
"""

import argparse
import contextlib
import itertools
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.bench import golden_observations
from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.loop_options import add_loop_options, loop_settings
from nnx_ppo.cli.output import Output, microseconds, table

if TYPE_CHECKING:
    from serving import LoopReport

EXAMPLES = """examples:
  nnx-ppo run policy/ --duration-s 10
  nnx-ppo run policy/ --rate-hz 100 --duration-s 10 --plant unix:///tmp/plant --miss-budget 0.01
  nnx-ppo run policy/ --rate-hz 500 --policy-every 10 --between interpolate
  nnx-ppo run policy/ --record records/ --on read_error=hold --on overrun=safe
"""

# None of these belongs in a process that acts on a robot.
TRAINING_MODULES = ("jax", "jaxlib", "flax", "tensorflow")

PATIENCE_S = 1.0
"""How long a simulator may take to give its summary after a signal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    parser.add_argument(
        "--runtime",
        default="onnx",
        help="name of the artefact: onnx, c, litert, saved_model, stablehlo, ... [onnx]",
    )
    parser.add_argument(
        "--rate-hz",
        type=float,
        help="steps per second [the control rate in the bundle, times --policy-every]",
    )
    parser.add_argument("--duration-s", type=float, default=10.0, help="seconds to run [10]")
    parser.add_argument("--plant", metavar="ADDRESS", help="where nnx-ppo simulate serves")
    parser.add_argument(
        "--miss-budget",
        type=float,
        metavar="FRACTION",
        help="share of the deadlines that may be missed, for example 0.01 [any]",
    )
    add_loop_options(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import ControlLoop, LoopError, PlantError, load_policy

    budget = arguments.miss_budget
    if budget is not None and not 0.0 <= budget <= 1.0:
        raise CommandError(f"--miss-budget is {budget}; expected a share from 0 to 1, such as 0.01")
    settings = loop_settings(arguments)
    policy = load_policy(arguments.bundle, runtime=arguments.runtime)
    if arguments.rate_hz is None and policy.control_rate_hz is None:
        raise CommandError(f"{arguments.bundle} does not say its control rate; give --rate-hz")
    session = policy.session()
    with contextlib.ExitStack() as stack:
        if arguments.plant is None:
            observations = itertools.cycle(golden_observations(policy.bundle, None))
            plant = None
            read, apply = observations.__next__, _ignore
        else:
            from serving.plant import RemotePlant

            plant = stack.enter_context(RemotePlant(arguments.plant, on_episode=session.reset))
            read, apply = plant.read, plant.apply
        loop = ControlLoop(session, read, apply, rate_hz=arguments.rate_hz, **settings)
        try:
            report = loop.run(duration_s=arguments.duration_s)
        except LoopError as error:
            for file in error.report.records if error.report is not None else ():
                output.note(f"flight record: {file}")
            raise
        summary = None
        if plant is not None:
            try:
                # A simulator that hangs must not keep a process that was told to end.
                summary = plant.close(timeout_s=None if report.signal is None else PATIENCE_S)
            except PlantError as error:
                if report.signal is None:
                    raise
                output.note(f"the simulator gave no summary: {error}")
    due = report.steps + report.misses
    missed = report.misses / due if due else 0.0
    kept = budget is None or missed <= budget
    imported = [name for name in TRAINING_MODULES if name in sys.modules]
    data = {
        "bundle": str(arguments.bundle),
        "runtime": arguments.runtime,
        "loop": report.to_json(),
        "missed_share": missed,
        "miss_budget": arguments.miss_budget,
        "within_budget": kept,
        "plant": summary,
        "imported": {name: name in imported for name in TRAINING_MODULES},
    }
    output.result(data, _as_text(report, summary, imported, kept=kept))
    if report.signal is not None:
        output.note(f"ended by {report.signal}")
        return 128 + getattr(signal, report.signal)
    return 0 if kept and report.stopped_by != "fault" else 1


def _ignore(action: Any) -> None:
    """Take an action that nobody is there for."""


def _as_text(
    report: "LoopReport", summary: dict[str, Any] | None, imported: list[str], *, kept: bool
) -> str:
    rows = [
        ("rate asked for", f"{report.rate_hz:g} Hz"),
        ("rate achieved", f"{report.achieved_rate_hz:.2f} Hz"),
        ("steps", str(report.steps)),
        ("misses", f"{report.misses}" + ("" if kept else "  (over the budget)")),
        ("step, median", microseconds(report.step_latency.median_s)),
        ("step, p99", microseconds(report.step_latency.p99_s)),
        ("lateness, p99", microseconds(report.lateness.p99_s)),
        ("jitter, p99", microseconds(report.jitter.p99_s)),
        ("stopped by", report.signal or report.stopped_by),
    ]
    rows += [(kind, str(count)) for kind, count in report.faults.items() if count]
    if report.safe_action_sent is not None:
        rows.append(("safe action sent last", "yes" if report.safe_action_sent else "NO"))
    rows += [tuple(line.split(": ", 1)) for line in report.settings]
    rows += [("record", file) for file in report.records]
    rows += [("note", note) for note in report.notes]
    if summary is not None:
        returns = ", ".join(f"{value:.2f}" for value in summary["returns"])
        rows.append(("returns of whole episodes", returns or "none ended"))
        rows.append(("return since the last end", f"{summary['unfinished_return']:.2f}"))
    rows.append(("training libraries in this process", ", ".join(imported) or "none"))
    return table(("control loop", ""), rows)
