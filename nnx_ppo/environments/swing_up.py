"""Swinging up a rotary pendulum and balancing it."""

import jax
import jax.numpy as jp
from jaxtyping import Float

from nnx_ppo.environments.integration import runge_kutta_4
from nnx_ppo.environments.rotary_pendulum import MechanismState, RotaryPendulum, wrap_angle
from nnx_ppo.environments.state import EnvironmentState
from nnx_ppo.networks.types import AnyArray

RESET_SPREAD = 0.5
REWARD_PER_S = 10.0
REWARD_ARM_SPEED_RAD_S = 8.0
REWARD_PENDULUM_SPEED_RAD_S = 5.0
OBSERVED_SPEED_RAD_S = 10.0


class SwingUp:
    """A rotary pendulum that has to be swung up and balanced, with the arm near zero.

    The action ``(1,)`` is the motor torque as a fraction of the largest one, clipped to [-1, 1].
    The observation ``(6,)`` is sine and cosine of the arm's and of the pendulum's angle, and the
    two speeds in units of 10 rad/s. Reward comes at a rate of up to 10 per second, so an episode
    returns at most 100; that of a step lies in [0, 0.1] and is 0.1 times the product of

    - how upright the pendulum is: ``((1 + cos(angle)) / 2)^2``,
    - how still both joints are: ``1 / (1 + (arm_speed / 8)^2 + (speed / 5)^2)``, in rad/s,
    - how close the arm is to zero: ``(3 + cos(arm_angle)) / 4``,

    so that whirling around earns little. A fall costs several times the time constant of an
    upright pendulum, 0.1 s: with a discount of 0.99 per step, which looks one second ahead, that
    is what a policy can see. Episodes never end by themselves; ``EpisodeWrapper`` limits them.

    Example:
        >>> environment = SwingUp()
        >>> state = environment.reset(jax.random.key(0))
        >>> environment.step(state, jp.ones(1)).obs.shape
        (6,)
    """

    control_rate_hz: float = 100.0
    """Steps per second."""
    episode_length: int = 1000
    """Steps of an episode, 10 s, for ``EpisodeWrapper`` and evaluation."""
    observation_size: int = 6
    """Width of the observation."""
    action_size: int = 1
    """Number of actions."""
    solved_return: float = 80.0
    """Mean return of whole episodes that counts as solving the task.

    ``reference_controllers.SwingUpController`` reaches a little more.
    """
    substeps: int = 2
    """Integration steps per control step."""

    def __init__(self, pendulum: RotaryPendulum | None = None):
        """Makes the environment.

        Args:
            pendulum: The mechanism; the usual one if None.
        """
        self.pendulum = RotaryPendulum() if pendulum is None else pendulum

    def reset(self, rng: jax.Array) -> EnvironmentState:
        """Returns the start of an episode: the pendulum is let go anywhere, slowly.

        Its angle is uniform over the circle; the arm's angle lies within 0.5 rad of zero and the
        speeds within 0.5 rad/s.
        """
        circle = jp.array([RESET_SPREAD, jp.pi, RESET_SPREAD, RESET_SPREAD], jp.float32)
        return self.start(
            circle * jax.random.uniform(rng, (4,), jp.float32, minval=-1.0, maxval=1.0)
        )

    def start(self, mechanism: MechanismState) -> EnvironmentState:
        """Returns the start of an episode with the mechanism in a given state."""
        zero = jp.zeros((), jp.float32)
        return EnvironmentState(
            obs=self.observe(mechanism),
            done=zero,
            reward=zero,
            info={},
            metrics=reward_terms(mechanism),
            mechanism=mechanism,
        )

    def step(self, state: EnvironmentState, action: Float[AnyArray, "1"]) -> EnvironmentState:
        """Returns the state after one control step of 10 ms."""
        mechanism = self.advance(state.mechanism, action)
        metrics = reward_terms(mechanism)
        quality = metrics["upright"] * metrics["still"] * metrics["centred"]
        return state.replace(
            obs=self.observe(mechanism),
            reward=REWARD_PER_S / self.control_rate_hz * quality,
            metrics=metrics,
            mechanism=mechanism,
        )

    def advance(self, mechanism: MechanismState, action: Float[AnyArray, "1"]) -> MechanismState:
        """Returns the mechanism's state after one control step under a constant torque."""
        torque = self.pendulum.max_torque_nm * jp.clip(jp.asarray(action)[0], -1.0, 1.0)
        mechanism = runge_kutta_4(
            lambda state: self.pendulum.derivative(state, torque),
            mechanism,
            duration_s=1.0 / self.control_rate_hz,
            substeps=self.substeps,
        )
        return mechanism.at[:2].set(wrap_angle(mechanism[:2]))

    def observe(self, mechanism: MechanismState) -> Float[jax.Array, " observation"]:
        """Returns what the sensors would report without delay."""
        return jp.concatenate([observed_angles(mechanism), mechanism[2:] / OBSERVED_SPEED_RAD_S])


def observed_angles(mechanism: MechanismState) -> Float[jax.Array, "4"]:
    """Returns sine and cosine of the arm's angle, then of the pendulum's."""
    sines, cosines = jp.sin(mechanism[:2]), jp.cos(mechanism[:2])
    return jp.stack([sines[0], cosines[0], sines[1], cosines[1]])


def reward_terms(mechanism: MechanismState) -> dict[str, jax.Array]:
    """Returns the factors of the reward, each in [0, 1]; full reward is their product being 1."""
    arm_angle, angle, arm_speed, speed = mechanism
    motion = (arm_speed / REWARD_ARM_SPEED_RAD_S) ** 2 + (speed / REWARD_PENDULUM_SPEED_RAD_S) ** 2
    return {
        "upright": (0.5 * (1.0 + jp.cos(angle))) ** 2,
        "still": 1.0 / (1.0 + motion),
        "centred": 0.25 * (3.0 + jp.cos(arm_angle)),
    }
