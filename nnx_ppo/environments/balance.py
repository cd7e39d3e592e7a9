"""Balancing a rotary pendulum as seen through slow sensors without speeds."""

import jax
import jax.numpy as jp
from jaxtyping import Float

from nnx_ppo.environments.state import DelayedState
from nnx_ppo.environments.swing_up_delayed import SwingUpDelayed
from nnx_ppo.networks.types import AnyArray

RESET_SPREADS = (0.3, 0.25, 0.3, 0.3)
FALLEN_RAD = 1.0


class Balance(SwingUpDelayed):
    """The second half of ``SwingUpDelayed``: the pendulum starts upright and must not fall.

    Mechanism, observation, action and reward are those of ``SwingUpDelayed``. An episode starts
    with the arm within 0.3 rad and the pendulum within 0.25 rad of zero, both slower than
    0.3 rad/s, and ends when the pendulum is more than 1 rad from upright. It is learned in a tenth
    of the steps that swinging up takes, and as impossible without memory.
    """

    solved_return: float = 85.0
    """Mean return of whole episodes that counts as solving the task."""

    def reset(self, rng: jax.Array) -> DelayedState:
        """Returns the start of an episode: nearly upright, nearly at rest."""
        spreads = jp.array(RESET_SPREADS, jp.float32)
        mechanism = spreads * jax.random.uniform(rng, (4,), jp.float32, minval=-1.0, maxval=1.0)
        return self.start(mechanism)

    def step(self, state: DelayedState, action: Float[AnyArray, "1"]) -> DelayedState:
        """Returns the state after one control step of 10 ms."""
        after = super().step(state, action)
        fallen = jp.abs(after.mechanism[1]) > FALLEN_RAD
        return after.replace(done=fallen.astype(jp.float32))
