"""Base of environments that change another environment's behaviour."""

from typing import Any

from nnx_ppo.algorithms.types import RLEnv


class EnvWrapper:
    """An environment around another one.

    Whatever a wrapper does not define, such as ``render`` or ``dt``, is the inner environment's.
    """

    def __init__(self, env: RLEnv):
        self.env = env

    def reset(self, rng: Any) -> Any:
        """Returns the state of a new episode."""
        return self.env.reset(rng)

    def step(self, state: Any, action: Any) -> Any:
        """Returns the state after one action."""
        return self.env.step(state, action)

    @property
    def observation_size(self) -> Any:
        """The inner environment's ``observation_size``."""
        return self.env.observation_size  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def action_size(self) -> Any:
        """The inner environment's ``action_size``."""
        return self.env.action_size  # pyright: ignore[reportAttributeAccessIssue]

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not found. Copying and unpickling look things up before `env`
        # is there, and must not recurse into this.
        if name == "env" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)
