"""What the demo trains: a graph with delays, a memoryless network of its size, the settings."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flax import nnx

    from nnx_ppo.algorithms.config import TrainConfig
    from nnx_ppo.networks.types import StatefulModule

ENVIRONMENT = "swing_up_delayed"
GRAPH = "nnx_ppo.cli.demo_setup:make_graph_policy"
MEMORYLESS = "nnx_ppo.cli.demo_setup:make_memoryless_policy"

TOTAL_STEPS = 2_000_000
SEED = 17


def make_graph_policy(
    observation_size: int, action_size: int, rngs: "nnx.Rngs", hidden_size: int = 64
) -> "StatefulModule":
    """Make the demo's policy: populations with a self-connection and delays of one to three steps.

    The sensory population reaches the hidden one at once and one and two steps later, so that
    velocities, which the task hides, can be read off differences; the hidden one reaches itself
    and, three steps later, the motor one.

    Args:
        observation_size: Width of the observation.
        action_size: Width of the action.
        rngs: Source of the initial weights and of the action noise.
        hidden_size: Neurons of the hidden population.
    """
    from flax import nnx

    from nnx_ppo.networks.adapter import PPOAdapter
    from nnx_ppo.networks.containers import Sequential
    from nnx_ppo.networks.factories import make_mlp
    from nnx_ppo.networks.graph import PopulationGraph
    from nnx_ppo.networks.normalizer import Normalizer
    from nnx_ppo.networks.sampling_layers import NormalTanhSampler
    from nnx_ppo.networks.utils import Filter, Flattener

    graph = PopulationGraph(rngs)
    graph.add_input("sensory", observation_size, input_from="observation")
    graph.add_population("hidden", hidden_size, activation=nnx.tanh)
    graph.add_output("motor", 2 * action_size)
    graph.add_output("state", hidden_size, activation=nnx.tanh)
    for delay in (0, 1, 2):
        graph.connect("sensory", "hidden", delay=delay)
    graph.connect("hidden", "hidden", delay=1)
    graph.connect("hidden", "motor")
    graph.connect("hidden", "motor", delay=3)
    graph.connect("hidden", "state")
    graph.finalize()
    return Sequential(
        [
            Normalizer(observation_size),
            Filter({"observation": lambda x: x}),
            graph,
            PPOAdapter(
                action=Sequential(
                    [
                        Filter({"motor": "motor"}),
                        Flattener(),
                        NormalTanhSampler(rngs, entropy_weight=1e-2, min_std=1e-1),
                    ]
                ),
                value=Sequential(
                    [
                        Filter({"state": "state"}),
                        Flattener(),
                        make_mlp(
                            [hidden_size, hidden_size, 1],
                            rngs,
                            activation=nnx.tanh,
                            activation_last_layer=False,
                        ),
                    ]
                ),
            ),
        ]
    )


def make_memoryless_policy(
    observation_size: int, action_size: int, rngs: "nnx.Rngs", hidden_size: int = 64
) -> "StatefulModule":
    """Make the network that the graph is compared with: an MLP that sees one observation only."""
    from nnx_ppo.networks.factories import make_mlp_actor_critic

    hidden = [hidden_size, hidden_size]
    return make_mlp_actor_critic(
        observation_size, action_size, hidden, hidden, rngs, activation="tanh"
    )


def demo_config(total_steps: int, seed: int, episode_length: int) -> "TrainConfig":
    """Settings of both trainings."""
    from nnx_ppo.algorithms.config import TrainConfig

    config = TrainConfig(seed=seed)
    config.ppo = dataclasses.replace(config.ppo, total_steps=total_steps, learning_rate=1e-3)
    config.eval = dataclasses.replace(
        config.eval, max_episode_length=episode_length, every_steps=max(1, total_steps // 20)
    )
    return config
