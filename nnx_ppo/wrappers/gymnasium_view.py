"""An environment in JAX as others see environments: with Gymnasium's interface.

Needs the extra `gymnasium`; nothing else of the package imports this module.
"""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from nnx_ppo.algorithms.types import RLEnv


class GymnasiumView(gymnasium.Env):
    """One robot's environment, stepped outside of JAX.

    Rewards of several keys are added. An episode that ends by itself is terminated; one whose
    ``info`` says ``truncated``, or that reaches ``episode_length``, is truncated.

    Example:
        >>> from nnx_ppo.environments import SwingUp
        >>> view = GymnasiumView(SwingUp())
        >>> observation, info = view.reset(seed=0)
        >>> view.action_space, observation.shape
        (Box(-1.0, 1.0, (1,), float32), (6,))
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, environment: RLEnv, episode_length: int | None = None):
        """Makes the view.

        Args:
            environment: The environment of a single robot, with an ``action_size``.
            episode_length: Steps after which an episode is truncated; None for the environment's
                ``episode_length``, if it has one.

        Raises:
            TypeError: The environment does not say its ``action_size``.
        """
        if not hasattr(environment, "action_size"):
            raise TypeError(
                f"{type(environment).__name__} has no action_size, the number of its actions or a "
                "dict of such; give it one"
            )
        self.environment = environment
        if episode_length is None:
            episode_length = getattr(environment, "episode_length", None)
        self.episode_length = episode_length
        self._reset = jax.jit(environment.reset)
        self._step = jax.jit(environment.step)
        self._state: Any = None
        self._steps = 0
        first = jax.eval_shape(environment.reset, jax.random.key(0))
        self.observation_space = _space(first.obs, np.inf)
        sizes = environment.action_size  # pyright: ignore[reportAttributeAccessIssue]
        actions = jax.tree.map(lambda n: jax.ShapeDtypeStruct((n,), np.dtype(np.float32)), sizes)
        self.action_space = _space(actions, 1.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; the same seed gives the same one, ``jax.random.key(seed)``'s."""
        super().reset(seed=seed)
        key = int(self.np_random.integers(2**31)) if seed is None else seed
        self._state = self._reset(jax.random.key(key))
        self._steps = 0
        return jax.device_get(self._state.obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step.

        Raises:
            RuntimeError: No episode has begun.
        """
        if self._state is None:
            raise RuntimeError("no episode has begun; call reset() first")
        self._state = self._step(self._state, action)
        self._steps += 1
        truncated = self._state.info.get("truncated", False)
        observation, rewards, done, truncated = jax.device_get(
            (self._state.obs, self._state.reward, self._state.done, truncated)
        )
        terminated = bool(done) and not bool(truncated)
        out_of_time = self._steps == self.episode_length and not terminated
        reward = float(sum(jax.tree.leaves(rewards)))
        return observation, reward, terminated, bool(truncated) or out_of_time, {}


def _space(tree: Any, limit: float) -> Any:
    """The space of arrays in a tree of dicts, lists and tuples."""
    if isinstance(tree, dict):
        return spaces.Dict({name: _space(part, limit) for name, part in tree.items()})
    if isinstance(tree, list | tuple):
        return spaces.Tuple([_space(part, limit) for part in tree])
    dtype = np.dtype(tree.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(tree.shape)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, tree.shape, dtype.type)
    return spaces.Box(-limit, limit, tree.shape, dtype.type)
