"""An environment as a plant: one robot, stepped in real time, observations as NumPy arrays."""

from typing import Any


class EnvironmentPlant:
    """The reset and step of one environment, as `serving.serve_plant` asks for them.

    The same seed gives the same episodes, so that a return can be compared with one from elsewhere.

    Args:
        environment: A `RLEnv`.
        seed: Of the first state of every episode.
        episode_length: Steps after which an episode ends; None for no limit.
    """

    def __init__(self, environment: Any, *, seed: int, episode_length: int | None) -> None:
        import jax

        self.episode_length = episode_length
        self._keys = jax.random.key(seed)
        self._reset = jax.jit(environment.reset)
        self._step = jax.jit(environment.step)
        self._state: Any = None
        self._steps = 0

    def reset(self) -> Any:
        """Begin an episode and return its first observation."""
        import jax

        self._keys, key = jax.random.split(self._keys)
        self._state = self._reset(key)
        self._steps = 0
        return jax.device_get(self._state.obs)

    def step(self, action: Any) -> tuple[Any, float, bool]:
        """Take one step; returns observation, reward (summed over its keys), whether it ended."""
        import jax

        self._state = self._step(self._state, action)
        self._steps += 1
        observation, reward, done = jax.device_get(
            (self._state.obs, self._state.reward, self._state.done)
        )
        ended = bool(done) or self._steps == self.episode_length
        return observation, float(sum(jax.tree.leaves(reward))), ended

    def compile(self, action: Any) -> None:
        """Compile all that an episode calls, so that its first cycle is as fast as the rest.

        `reset` also splits a key, which would else be compiled in the first cycle of a loop.
        """
        keys = self._keys
        self.reset()
        self.step(action)
        self._keys, self._state, self._steps = keys, None, 0
