"""Rewards in a size that suits the learning rate."""

from typing import Any

import jax

from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.wrappers.env_wrapper import EnvWrapper


class RewardScalingWrapper(EnvWrapper):
    """Multiplies rewards, each of them where there are several, by a constant."""

    def __init__(self, env: RLEnv, reward_scale: float | int):
        """Wraps an environment.

        Args:
            env: The environment of a single robot.
            reward_scale: The factor.
        """
        super().__init__(env)
        self.reward_scale = reward_scale

    def reset(self, rng: Any) -> Any:
        """Returns the state of a new episode."""
        return self._scaled(self.env.reset(rng))

    def step(self, state: Any, action: Any) -> Any:
        """Returns the state after one action."""
        return self._scaled(self.env.step(state, action))

    def _scaled(self, state: Any) -> Any:
        reward = jax.tree.map(lambda reward: reward * self.reward_scale, state.reward)
        return state.replace(reward=reward)
