"""Parses the command line, runs one subcommand, and turns what happens into an exit status.

Exit status: 0 done; 1 the finding that was asked for (parity failed, self-test failed, deadline
budget missed, return too low, bundles differ); 2 wrong use or an error, with one line on standard
error; 130 interrupted, 143 terminated, 129 hung up, each after what was half written has been
removed.
"""

import argparse
import contextlib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from nnx_ppo import __version__
from nnx_ppo.cli.errors import describe, explains_itself
from nnx_ppo.cli.output import Output
from nnx_ppo.cli.signals import Ended, ending_signals_raise

DONE, FINDING, ERROR, INTERRUPTED = 0, 1, 2, 130

# Subcommand -> (what it does, the extra that it needs). Each lives in the module of its name,
# imported only when it is the one that was asked for: a robot has no JAX, and the options of
# `train` come from dataclasses whose module imports it.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("train a policy with PPO", "train"),
    "export": ("turn a checkpoint into a bundle", "export"),
    "verify": ("prove that a bundle acts as its network does", "export"),
    "inspect": ("say what a bundle holds", "serving"),
    "report": ("write a bundle's report as a page", "export"),
    "diff": ("say in what two bundles differ", "serving"),
    "selftest": ("replay a bundle's golden trajectory here", "serving"),
    "run": ("run a bundle in a control loop", "serving"),
    "replay": ("run a flight record again and compare", "serving"),
    "bench": ("time one control step in every runtime", "serving"),
    "triton": ("write a bundle into a Triton model repository", "serving"),
    "serve": ("serve a bundle to a fleet with a Triton server", "triton"),
    "evaluate": ("run whole episodes in an environment", "gymnasium"),
    "simulate": ("serve a built-in environment as a plant", "train"),
    "demo": ("the whole path, from training to a control loop", "export"),
}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ERROR, f"{self.prog}: error: {message} (see: {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the command's name; those of the process if None.

    Returns:
        The exit status, as described at the top of this file.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    # TensorFlow's start-up notes are about its own build; they would drown what matters.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    name = argv[0] if argv and argv[0] in COMMANDS else None
    extra = COMMANDS[name][1] if name else None
    prog = f"nnx-ppo {name}" if name else "nnx-ppo"
    try:
        arguments = _build_parser(name).parse_args(argv)
        output = Output(as_json=arguments.json)
        # What a library prints to standard output must not get into the result.
        with (
            contextlib.redirect_stdout(sys.stderr),
            warnings.catch_warnings(),
            ending_signals_raise(),
        ):
            warnings.showwarning = lambda message, *_: output.note(f"{prog}: warning: {message}")
            return arguments.run(arguments, output)
    except SystemExit as stop:  # argparse's way to end, after --help, --version or its own error
        return stop.code if isinstance(stop.code, int) else ERROR
    except Ended as ended:
        print(f"{prog}: ended by {ended.name}", file=sys.stderr)
        return ended.status
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # the border: below it raise, above it a status
        if "--debug" in argv:
            traceback.print_exc()
        hint = "" if "--debug" in argv or explains_itself(error) else " (--debug shows where)"
        print(f"{prog}: error: {describe(error, extra)}{hint}", file=sys.stderr)
        return ERROR


def _build_parser(name: str | None) -> argparse.ArgumentParser:
    """Build the parser with the options of one subcommand; the others are listed by name."""
    parser = _Parser(
        prog="nnx-ppo",
        description="Train stateful policies in JAX, export them, prove them equal, run them.",
        epilog="Each command has its own help with examples: nnx-ppo COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"nnx-ppo {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command, (summary, _) in COMMANDS.items():
        subparser = subparsers.add_parser(
            command,
            help=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # a shortened option would change its meaning when one is added
        )
        if command == name:
            module = importlib.import_module(f"nnx_ppo.cli.{command}")
            subparser.description = module.__doc__
            subparser.epilog = module.EXAMPLES
            module.add_arguments(subparser)
            _add_common_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for scripts and reports")
    group.add_argument("--json", action="store_true", help="write the result as JSON")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")
