"""Options of a model for a fleet's server, shared by `triton` and `serve`."""

import argparse
import dataclasses
from typing import Any

MODES = {"python": "sequences", "onnxruntime": "implicit_state"}


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each of `FleetSettings`, and `--name`."""
    # The package of the defaults imports nothing but NumPy and the bundle's libraries.
    from serving import FleetSettings

    defaults = FleetSettings()
    group = parser.add_argument_group("the model")
    group.add_argument("--name", help="the model's name [that of the policy]")
    group.add_argument(
        "--backend",
        choices=sorted(MODES),
        default="python",
        help="python: our model, which keeps a carry for each sequence; onnxruntime: Triton's own, "
        "which keeps the carry itself (implicit state) [python]",
    )
    group.add_argument(
        "--stateless",
        action="store_true",
        help="the carry comes with each request and goes with the answer",
    )
    group.add_argument(
        "--runtime",
        default=defaults.runtime,
        help=f"what steps the policy in the python backend [{defaults.runtime}]",
    )
    group.add_argument(
        "--threads", type=int, default=defaults.threads, help=f"of it [{defaults.threads}]"
    )
    group.add_argument(
        "--max-batch-size",
        type=int,
        default=defaults.max_batch_size,
        help=f"most robots stepped in one call [{defaults.max_batch_size}]",
    )
    group.add_argument(
        "--max-sequences",
        type=int,
        default=defaults.max_sequences,
        help=f"most robots at a time; the next one is refused [{defaults.max_sequences}]",
    )
    group.add_argument(
        "--idle-timeout-s",
        type=float,
        default=defaults.idle_timeout_s,
        help=f"forget a robot that has not asked for so long [{defaults.idle_timeout_s:g}]",
    )
    group.add_argument(
        "--max-queue-delay-s",
        type=float,
        default=defaults.max_queue_delay_s,
        help=f"let a request wait for others to be batched with [{defaults.max_queue_delay_s:g}]",
    )
    group.add_argument(
        "--no-self-test",
        action="store_true",
        help="do not replay the golden trajectory when the model is loaded",
    )


def fleet_settings(arguments: argparse.Namespace) -> Any:
    """Return the `FleetSettings` that the options ask for.

    Raises:
        CommandError: If two options contradict each other.
        serving.FleetError: If a value is out of range.
    """
    from nnx_ppo.cli.errors import CommandError
    from serving import FleetSettings

    if arguments.stateless and arguments.backend != "python":
        raise CommandError(
            "--stateless is a mode of the python backend; leave --backend onnxruntime out"
        )
    if arguments.backend == "onnxruntime" and arguments.runtime != "onnx":
        raise CommandError(
            f"--backend onnxruntime runs the ONNX file itself; leave --runtime {arguments.runtime} "
            "out"
        )
    names = {field.name for field in dataclasses.fields(FleetSettings)} - {"mode", "self_test"}
    return FleetSettings(
        mode="stateless" if arguments.stateless else MODES[arguments.backend],  # pyright: ignore
        self_test=not arguments.no_self_test,
        **{name: getattr(arguments, name) for name in names},
    )
