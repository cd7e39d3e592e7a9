"""Options of `nnx-ppo run` that say how the control loop guards itself."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.errors import CommandError

if TYPE_CHECKING:
    from serving import FaultPolicy


def add_loop_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, in groups of one subject each."""
    timing = parser.add_argument_group("between the steps of the policy")
    timing.add_argument(
        "--policy-every",
        type=int,
        default=1,
        metavar="N",
        help="let the policy act at every Nth step of the loop [1]",
    )
    timing.add_argument(
        "--between",
        choices=("hold", "interpolate"),
        default="hold",
        help="what is sent meanwhile: its last action, or a straight line to it [hold]",
    )

    faults = parser.add_argument_group("when something goes wrong")
    faults.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="FAULT=REACTION",
        help="continue, hold, safe, stop or raise on a kind of fault, such as overrun=stop; may be "
        "repeated (kinds and defaults: docs/control_loop.md)",
    )
    faults.add_argument(
        "--scale-actions",
        action="store_true",
        help="apply the bundle's action_scale and action_offset, unless the policy has done so",
    )
    faults.add_argument(
        "--ramp-s", type=float, default=0.0, help="seconds for the way to the safe action [0]"
    )
    faults.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="keep the last seconds and write them here after a fault, for nnx-ppo replay",
    )
    faults.add_argument(
        "--record-s", type=float, default=10.0, metavar="SECONDS", help="how many of them [10]"
    )
    faults.add_argument(
        "--record-always", action="store_true", help="write a record at the end of every run"
    )

    system = parser.add_argument_group("what is asked of the system")
    system.add_argument("--priority", type=int, help="priority under SCHED_FIFO, 1 to 98 [none]")
    system.add_argument(
        "--cpus", type=_cpus, metavar="N,...", help="processors to run on [those of the process]"
    )
    system.add_argument("--lock-memory", action="store_true", help="keep all memory in RAM")
    system.add_argument("--freeze-gc", action="store_true", help="collect no garbage meanwhile")
    system.add_argument(
        "--require-real-time",
        action="store_true",
        help="refuse to run if one of these cannot be had [say so and run]",
    )


def loop_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the keyword arguments of `serving.ControlLoop` from the options.

    Raises:
        CommandError: If a fault or reaction is unknown.
        serving.LoopError: If a value is out of its range.
    """
    from serving import ActionGuard, FlightRecorder, RealTime

    settings: dict[str, Any] = {
        "policy_every": arguments.policy_every,
        "between": arguments.between,
        "actions": ActionGuard(scale=arguments.scale_actions, ramp_s=arguments.ramp_s),
        "faults": _fault_policy(arguments.on),
        "handle_signals": True,
    }
    if arguments.record is not None:
        settings["recorder"] = FlightRecorder(
            arguments.record, seconds=arguments.record_s, at_end=arguments.record_always
        )
    elif arguments.record_always:
        raise CommandError("--record-always needs --record DIR")
    real_time = RealTime(
        priority=arguments.priority,
        cpus=arguments.cpus,
        lock_memory=arguments.lock_memory,
        freeze_gc=arguments.freeze_gc,
        require=arguments.require_real_time,
    )
    if real_time != RealTime(require=arguments.require_real_time):
        settings["real_time"] = real_time
    return settings


def _fault_policy(choices: list[str]) -> "FaultPolicy":
    from serving import FaultPolicy
    from serving.control.faults import KINDS

    reactions: dict[str, Any] = {}
    for choice in choices:
        kind, _, reaction = choice.partition("=")
        if reaction not in KINDS.get(kind, ()):
            allowed = ", ".join(sorted(KINDS[kind])) if kind in KINDS else ", ".join(KINDS)
            what = f"the reactions to {kind}" if kind in KINDS else "the kinds of fault"
            raise CommandError(f"--on {choice}: {what} are {allowed}")
        reactions[kind] = reaction
    return FaultPolicy(**reactions)


def _cpus(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no list of numbers such as 2,3") from None
