"""The swing-up task as seen through slow sensors without speeds."""

import jax
import jax.numpy as jp
from jaxtyping import Float

from nnx_ppo.environments.rotary_pendulum import MechanismState, RotaryPendulum
from nnx_ppo.environments.state import DelayedState
from nnx_ppo.environments.swing_up import SwingUp, observed_angles
from nnx_ppo.networks.types import AnyArray


class SwingUpDelayed(SwingUp):
    """``SwingUp`` with speeds hidden and every reading some control steps old.

    The observation ``(4,)`` is sine and cosine of the arm's and of the pendulum's angle as they
    were ``delay_steps`` steps ago, or at the start of the episode before there was such a step.
    Mechanism, action and reward are those of ``SwingUp``; the reward is that of the present.

    One observation does not say which way anything moves, and feedback of an old angle pushes an
    upright pendulum in the direction in which it already moves. A policy has to remember.
    """

    observation_size: int = 4
    """Width of the observation."""
    solved_return: float = 75.0
    """Mean return of whole episodes that counts as solving the task.

    ``reference_controllers.DelayedSwingUpController`` reaches more from the same observations.
    """

    def __init__(self, delay_steps: int = 3, pendulum: RotaryPendulum | None = None):
        """Makes the environment.

        Args:
            delay_steps: Age of every reading in control steps of 10 ms, at least 1.
            pendulum: The mechanism; the usual one if None.

        Raises:
            ValueError: ``delay_steps`` is not positive.
        """
        super().__init__(pendulum)
        if delay_steps < 1:
            raise ValueError(
                f"delay_steps={delay_steps}: readings are at least one step old here; "
                f"use SwingUp for present ones"
            )
        self.delay_steps = delay_steps

    def start(self, mechanism: MechanismState) -> DelayedState:
        """Returns the start of an episode; all readings on their way are that of now."""
        state = super().start(mechanism)
        return DelayedState(
            obs=state.obs,
            done=state.done,
            reward=state.reward,
            info=state.info,
            metrics=state.metrics,
            mechanism=mechanism,
            pending=jp.tile(state.obs, (self.delay_steps, 1)),
        )

    def step(self, state: DelayedState, action: Float[AnyArray, "1"]) -> DelayedState:
        """Returns the state after one control step of 10 ms."""
        present = super().step(state, action)
        return state.replace(
            obs=state.pending[-1],
            reward=present.reward,
            metrics=present.metrics,
            mechanism=present.mechanism,
            pending=jp.concatenate([present.obs[None], state.pending[:-1]]),
        )

    def observe(self, mechanism: MechanismState) -> Float[jax.Array, " observation"]:
        """Returns the reading that is taken now."""
        return observed_angles(mechanism)
