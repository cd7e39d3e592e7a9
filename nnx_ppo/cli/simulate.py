"""Serve a built-in environment as a plant, for one client.

It stands in for a robot: a process of its own that answers each action with the observation after
it (nnx-ppo run --plant). It ends when the client does.
"""

import argparse
from typing import Any

from nnx_ppo.cli.output import Output
from nnx_ppo.cli.plant import EnvironmentPlant
from nnx_ppo.cli.references import read_json_object
from nnx_ppo.cli.training import environment_record

EXAMPLES = """examples:
  nnx-ppo simulate swing_up --address unix:///tmp/plant
  nnx-ppo simulate swing_up_delayed --seed 3 --json
"""

LISTENING = "listening on "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environment", help="a built-in environment, or package.module:factory")
    parser.add_argument(
        "--environment-arguments",
        default="{}",
        metavar="JSON",
        help="arguments of the environment's factory, a JSON object or @FILE",
    )
    parser.add_argument(
        "--address",
        default="tcp://127.0.0.1:0",
        help="tcp://host:port, port 0 for a free one, or unix:///path [tcp://127.0.0.1:0]",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes [0]")
    parser.add_argument(
        "--wait-s", type=float, help="longest wait for the client to connect [for ever]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving.plant import serve_plant

    given = read_json_object(arguments.environment_arguments, option="--environment-arguments")
    environment = environment_record(arguments.environment, given).build()
    plant = EnvironmentPlant(
        environment,
        seed=arguments.seed,
        episode_length=getattr(environment, "episode_length", None),
    )
    plant.compile(resting_action(environment))
    summary = serve_plant(
        plant.reset,
        plant.step,
        address=arguments.address,
        on_listening=lambda address: output.note(f"{LISTENING}{address}"),
        accept_timeout_s=arguments.wait_s,
    )
    returns = ", ".join(f"{value:.2f}" for value in summary.returns) or "none"
    output.result(
        summary.to_json(),
        f"{summary.steps} steps, returns of whole episodes: {returns}, "
        f"since the last end: {summary.unfinished_return:.2f}",
    )
    return 0


def resting_action(environment: Any) -> Any:
    """Make an action of zeros in the structure that an environment takes."""
    import jax
    import numpy as np

    return jax.tree.map(lambda n_actions: np.zeros(n_actions, np.float32), environment.action_size)
