"""From what a person names on the command line to a network with its weights and an observation."""

import argparse
import json
from pathlib import Path
from typing import Any

from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.references import (
    import_function,
    read_json_object,
    search_working_directory,
)


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add what names a network that its checkpoint does not, or that has no checkpoint."""
    group = parser.add_argument_group("network")
    group.add_argument(
        "--network",
        metavar="FACTORY",
        help="package.module:factory that makes the network [as the checkpoint records]",
    )
    group.add_argument(
        "--network-arguments",
        default="{}",
        metavar="JSON",
        help="arguments of that factory, a JSON object or @FILE",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the rngs given to that factory; its random weights are replaced by the "
        "checkpoint's [0]",
    )


def checkpoint_directory(path: Path) -> Path:
    """Find the checkpoint that a path means: itself, or the last complete one of a run.

    Raises:
        CommandError: If there is none.
    """
    from nnx_ppo.algorithms.checkpointing import latest_checkpoint

    if not path.is_dir():
        raise CommandError(
            f"there is no directory {path}; give a checkpoint (.../step_0000512000) or "
            "a run's directory"
        )
    if (path / "metadata.json").is_file():
        return path
    latest = latest_checkpoint(path)
    if latest is None:
        raise CommandError(f"{path} is no checkpoint and holds no complete one (step_*/)")
    return latest


def network_of(arguments: argparse.Namespace, checkpoint: Path | None) -> Any:
    """Build the network by the checkpoint's record or by `--network`; weights from the checkpoint.

    Raises:
        CommandError: If neither a checkpoint nor `--network` was given, or the checkpoint records
            no factory and none was given.
    """
    search_working_directory()
    network = None
    if arguments.network is not None:
        from nnx_ppo.algorithms.factory_record import record_factory

        given = read_json_object(arguments.network_arguments, option="--network-arguments")
        factory = import_function(arguments.network)
        network = record_factory(factory, arguments.seed, **given).build()
    if checkpoint is None:
        if network is None:
            raise CommandError("name a checkpoint, or --network for a policy trained elsewhere")
        return network
    from nnx_ppo.algorithms.checkpointing import load_network, read_checkpoint_record

    if network is None and read_checkpoint_record(checkpoint).network_factory is None:
        raise CommandError(
            f"{checkpoint} does not record how its network is made; "
            "name its factory with --network package.module:factory"
        )
    return load_network(checkpoint, network)


def observation_from_shapes(text: str) -> Any:
    """Read an observation's structure written as JSON: a list of numbers is an array's shape.

    Args:
        text: `[8]`, or `{"arm": [4], "target": [3]}`; leaves are float32, without a batch axis.

    Returns:
        A tree of `jax.ShapeDtypeStruct`.

    Raises:
        CommandError: If it is not JSON, or a leaf is no list of whole numbers.
    """
    import jax
    import jax.numpy as jnp

    def convert(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {key: convert(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, list) and all(type(item) is int and item > 0 for item in value):
            return jax.ShapeDtypeStruct(tuple(value), jnp.float32)
        raise CommandError(
            f"--observation-shapes: {path} is {json.dumps(value)}; expected an object, or a shape "
            "such as [8]"
        )

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(
            f"--observation-shapes is not JSON: {error.msg} at character {error.pos} of {text!r}"
        ) from error
    return convert(value, "obs")
