"""Options of a model for a fleet's server, shared by `triton` and `serve`."""

import argparse
from typing import Any

from nnx_ppo.cli.config_options import add_config_options, config_overrides
from nnx_ppo.cli.errors import CommandError

MODES = {"python": "sequences", "onnxruntime": "implicit_state"}


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each of `FleetSettings`, and `--name`."""
    # The package of the defaults imports nothing but NumPy and the bundle's libraries.
    from serving import FleetSettings

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
    add_config_options(group, FleetSettings, leave_out=("mode",))


def fleet_settings(arguments: argparse.Namespace) -> Any:
    """Return the `FleetSettings` that the options ask for.

    Raises:
        CommandError: If two options contradict each other.
        serving.FleetError: If a value is out of range.
    """
    from serving import FleetSettings

    given = config_overrides(arguments, FleetSettings)
    if arguments.stateless and arguments.backend != "python":
        raise CommandError(
            "--stateless is a mode of the python backend; leave --backend onnxruntime out"
        )
    runtime = given.get("runtime", "onnx")
    if arguments.backend == "onnxruntime" and runtime != "onnx":
        raise CommandError(
            f"--backend onnxruntime runs the ONNX file itself; leave --runtime {runtime} out"
        )
    mode = "stateless" if arguments.stateless else MODES[arguments.backend]
    return FleetSettings(**{**given, "mode": mode})
