"""Choosing runtimes on the command line, shared by `selftest`, `run` and `bench`."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nnx_ppo.cli.errors import CommandError

if TYPE_CHECKING:
    from serving import Policy

ALL = "all"


def add_runtime_option(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add `--runtime`, which takes several names or `all`."""
    parser.add_argument(
        "--runtime",
        default=default,
        metavar="NAME,...",
        help="onnx, c, litert, saved_model, saved_model_xla, stablehlo, several, or "
        f"{ALL} for each that the bundle has and this environment can run [{default}]",
    )


def load_runtimes(
    bundle: Path, names: str, *, note: Callable[[str], None] | None = None
) -> "dict[str, Policy]":
    """Load a bundle in each of the runtimes named.

    Args:
        bundle: Directory of the bundle.
        names: Names joined by commas, or `all`.
        note: Told, with `all`, which runtime is left out and why.

    Returns:
        Policies by runtime, in the order asked for.

    Raises:
        serving.RuntimeUnavailableError: If a runtime that was named is unknown, its package
            missing or its artefact not in the bundle.
        CommandError: If none is left.
    """
    from serving import RuntimeUnavailableError, load_policy, read_bundle

    if names != ALL:
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        if not wanted:
            raise CommandError("--runtime names no runtime; write, for example, --runtime onnx")
        return {name: load_policy(bundle, runtime=name) for name in wanted}
    policies = {}
    for name in read_bundle(bundle).manifest.artefacts:
        try:
            policies[name] = load_policy(bundle, runtime=name)
        except RuntimeUnavailableError as error:
            if note is not None:
                note(f"without {name}: {' '.join(str(error).split())}")
    if not policies:
        raise CommandError(
            f"none of the bundle's runtimes can run here; install one: "
            f'pip install "nnx-ppo-deploy[serving]" (bundle: {bundle})'
        )
    return policies
