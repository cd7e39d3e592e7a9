"""A time limit for episodes."""

from typing import Any

import jax
import jax.numpy as jp

from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.wrappers.env_wrapper import EnvWrapper


class EpisodeWrapper(EnvWrapper):
    """Cuts episodes after a number of steps.

    The state's ``info`` gains ``step_counter`` (int32) and ``truncated`` (bool). A cut episode is
    done and truncated; one that ends by itself in its last permitted step is done only.

    Counters start at a random step below half the limit, so that environments in training do not
    all end their episodes in the same step. For evaluation turn this off, or episodes are shorter
    than the limit.
    """

    def __init__(self, env: RLEnv, max_len: int, *, random_start: bool = True):
        """Wraps an environment.

        Args:
            env: The environment of a single robot.
            max_len: Largest number of steps in an episode.
            random_start: Whether counters start at a random step.

        Raises:
            ValueError: ``max_len`` is not positive.
        """
        super().__init__(env)
        if max_len < 1:
            raise ValueError(f"max_len={max_len}: an episode has at least one step")
        self.max_len = max_len
        self.random_start = random_start

    def reset(self, rng: Any) -> Any:
        """Returns the state of a new episode."""
        env_rng, counter_rng = jax.random.split(rng)
        state = self.env.reset(env_rng)
        step_counter = jp.zeros((), jp.int32)
        if self.random_start and self.max_len >= 4:
            step_counter = jax.random.randint(counter_rng, (), 0, self.max_len // 2, jp.int32)
        info = {**state.info, "step_counter": step_counter, "truncated": jp.array(False)}
        return state.replace(done=jp.asarray(state.done).astype(jp.float32), info=info)

    def step(self, state: Any, action: Any) -> Any:
        """Returns the state after one action."""
        next_state = self.env.step(state, action)
        step_counter = state.info["step_counter"] + 1
        done = jp.asarray(next_state.done).astype(bool)
        out_of_time = (step_counter >= self.max_len) & ~done
        truncated = jp.asarray(next_state.info.get("truncated", False)).astype(bool) | out_of_time
        info = {**next_state.info, "step_counter": step_counter, "truncated": truncated}
        return next_state.replace(done=(done | truncated).astype(jp.float32), info=info)
