"""What the demo trains, and with which settings."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnx_ppo.algorithms.config import TrainConfig

ENVIRONMENT = "swing_up_delayed"
GRAPH = "nnx_ppo.environments.policies:make_delayed_graph_policy"
MEMORYLESS = "nnx_ppo.environments.policies:make_memoryless_policy"

TOTAL_STEPS = 3_000_000
SEED = 17


def demo_config(total_steps: int, seed: int, episode_length: int) -> "TrainConfig":
    """Settings of both trainings, so that only the networks differ.

    Args:
        total_steps: Environment steps of each.
        seed: Of everything that is drawn.
        episode_length: Steps of an evaluation episode.
    """
    from nnx_ppo.algorithms.config import TrainConfig

    config = TrainConfig(seed=seed, checkpoint_every_steps=max(1, total_steps // 4))
    config.ppo = dataclasses.replace(
        config.ppo, total_steps=total_steps, learning_rate=3e-4, gradient_clipping=1.0
    )
    config.eval = dataclasses.replace(
        config.eval, max_episode_length=episode_length, every_steps=max(1, total_steps // 10)
    )
    return config
