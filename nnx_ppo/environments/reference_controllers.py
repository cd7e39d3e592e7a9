"""Model-based controllers that solve the built-in tasks, and so say what return is possible.

They know the equations of motion; a learnt policy does not.
"""

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
from jaxtyping import Float

from nnx_ppo.environments.rotary_pendulum import MechanismState, wrap_angle
from nnx_ppo.environments.swing_up import OBSERVED_SPEED_RAD_S, SwingUp
from nnx_ppo.environments.swing_up_delayed import SwingUpDelayed
from nnx_ppo.environments.two_arm import ARMS, OBSERVED_LENGTH_M, SIDE, TwoArm
from nnx_ppo.environments.two_arm import OBSERVED_SPEED_RAD_S as ARM_SPEED_RAD_S

# Weights of the regulator: arm and pendulum angle (rad), their speeds (rad/s), and the action.
STATE_WEIGHTS = (2.0, 5.0, 0.05, 0.05)
ACTION_WEIGHT = 1.0
# The regulator takes over where it can hold the pendulum with the torque there is.
CATCH_ANGLE_RAD = 0.45
CATCH_SPEED_RAD_S = 8.0
# Energy to arrive with, as a fraction of the gravity torque: a little more than for standing still,
# because friction and the arm's springs take some.
SURPLUS_ENERGY = 0.12
# Corrections of the observer per rad of difference between a reading and what was expected.
OBSERVER_ANGLE_GAIN = 0.6
OBSERVER_SPEED_GAIN_PER_S = 15.0

# Stiffness and damping with which computed torques pull an arm to its goal.
POSITION_GAIN_PER_S2 = 300.0
SPEED_GAIN_PER_S = 30.0


class SwingUpController:
    """Pumps energy into the pendulum until it reaches the top, then regulates it there.

    Energy control follows K. J. Astrom and K. Furuta, "Swinging up a pendulum by energy control"
    (2000): the torque accelerates the arm in the direction in which the pendulum gains energy. The
    regulator is the discrete linear-quadratic one for the linearized mechanism.
    """

    def __init__(self, environment: SwingUp):
        """Designs the controller for an environment's mechanism."""
        self.pendulum = environment.pendulum
        upright = jp.zeros(4, jp.float32)
        transition, steering = jax.jit(jax.jacobian(environment.advance, argnums=(0, 1)))(
            upright, jp.zeros(1, jp.float32)
        )
        gain = regulator_gain(
            np.asarray(transition, np.float64),
            np.asarray(steering, np.float64),
            np.diag(STATE_WEIGHTS),
            np.array([[ACTION_WEIGHT]]),
        )
        self.gain = jp.asarray(gain, jp.float32)

    def initial_carry(self, obs: Float[jax.Array, "6"]) -> tuple[()]:
        """Returns what the controller remembers at the start of an episode: nothing."""
        return ()

    def __call__(
        self, carry: tuple[()], obs: Float[jax.Array, "6"]
    ) -> tuple[tuple[()], Float[jax.Array, "1"]]:
        """Returns the carry and the action for an observation of ``SwingUp``."""
        return carry, self.act(jp.concatenate([_angles(obs), OBSERVED_SPEED_RAD_S * obs[4:]]))

    def act(self, mechanism: MechanismState) -> Float[jax.Array, "1"]:
        """Returns the action for a state of the mechanism."""
        near = (jp.abs(mechanism[1]) < CATCH_ANGLE_RAD) & (jp.abs(mechanism[3]) < CATCH_SPEED_RAD_S)
        return jp.where(near, self._regulate(mechanism), self._pump(mechanism))

    def _regulate(self, mechanism: MechanismState) -> Float[jax.Array, "1"]:
        return jp.clip(-self.gain @ mechanism, -1.0, 1.0)

    def _pump(self, mechanism: MechanismState) -> Float[jax.Array, "1"]:
        arm_angle, angle, arm_speed, speed = mechanism
        gravity_torque = self.pendulum.gravity_torque_nm
        kinetic = 0.5 * self.pendulum.pendulum_inertia * speed**2 / gravity_torque
        missing = SURPLUS_ENERGY - (kinetic + jp.cos(angle) - 1.0)
        # Accelerating the arm by a changes the pendulum's energy at the rate
        # -coupling * cos(angle) * speed * a; a soft spring keeps the arm from wandering off.
        push = -jp.sign(jp.cos(angle) * speed) * jp.clip(8.0 * missing, -1.0, 1.0)
        return jp.clip(push - 0.09 * arm_angle - 0.01 * arm_speed, -1.0, 1.0)[None]


class DelayedSwingUpController:
    """Solves ``SwingUpDelayed`` from what a policy sees there.

    An observer follows the mechanism as of the readings, speeds included; the equations of motion
    and the actions since then tell where it is now, and ``SwingUpController`` acts on that.
    """

    def __init__(self, environment: SwingUpDelayed):
        """Designs the controller for an environment's mechanism and delay."""
        self.environment = environment
        self.controller = SwingUpController(environment)

    def initial_carry(self, obs: Float[jax.Array, "4"]) -> dict[str, jax.Array]:
        """Returns what the controller remembers at the start of an episode."""
        return {
            "estimate": jp.concatenate([_angles(obs), jp.zeros(2, jp.float32)]),
            "actions": jp.zeros((self.environment.delay_steps + 1, 1), jp.float32),
        }

    def __call__(
        self, carry: dict[str, jax.Array], obs: Float[jax.Array, "4"]
    ) -> tuple[dict[str, jax.Array], Float[jax.Array, "1"]]:
        """Returns the carry and the action for an observation of ``SwingUpDelayed``."""
        *since_reading, before_reading = [
            carry["actions"][age] for age in range(len(carry["actions"]))
        ]
        expected = self.environment.advance(carry["estimate"], before_reading)
        difference = wrap_angle(_angles(obs) - expected[:2])
        estimate = expected + jp.concatenate(
            [OBSERVER_ANGLE_GAIN * difference, OBSERVER_SPEED_GAIN_PER_S * difference]
        )
        present = estimate
        for action in reversed(since_reading):
            present = self.environment.advance(present, action)
        action = self.controller.act(present)
        actions = jp.concatenate([action[None], carry["actions"][:-1]])
        return {"estimate": estimate, "actions": actions}, action


class TwoArmController:
    """Solves ``TwoArm`` by inverse kinematics and computed torques, each arm by itself."""

    def __init__(self, environment: TwoArm):
        """Designs the controller for an environment's mechanism."""
        self.arm = environment.arm

    def initial_carry(self, obs: Any) -> tuple[()]:
        """Returns what the controller remembers at the start of an episode: nothing."""
        return ()

    def __call__(self, carry: tuple[()], obs: Any) -> tuple[tuple[()], dict[str, jax.Array]]:
        """Returns the carry and the actions for an observation of ``TwoArm``."""
        return carry, {name: self._act(obs[name], SIDE[name]) for name in ARMS}

    def _act(self, obs: dict[str, jax.Array], side: float) -> Float[jax.Array, "2"]:
        proprioception, target = obs["proprioception"], OBSERVED_LENGTH_M * obs["target"]
        angles = jp.arctan2(proprioception[:2], proprioception[2:4])
        speeds = ARM_SPEED_RAD_S * proprioception[4:]
        # Where the end will be after this step, with the hand's jacobian there.
        goal = self.arm.hand(angles) + target[:2] + 0.02 * target[2:]
        goal_angles = self.inverse_kinematics(goal, side)
        goal_speeds = jp.linalg.solve(jax.jacobian(self.arm.hand)(goal_angles), target[2:])
        accelerations = POSITION_GAIN_PER_S2 * wrap_angle(goal_angles - angles)
        accelerations += SPEED_GAIN_PER_S * (goal_speeds - speeds)
        passive = self.arm.passive_torques(jp.concatenate([angles, speeds]))
        torques = self.arm.mass_matrix(angles) @ accelerations - passive
        return jp.clip(torques / self.arm.max_torques_nm, -1.0, 1.0)

    def inverse_kinematics(self, point: Float[jax.Array, "2"], side: float) -> jax.Array:
        """Returns the joint angles ``(2,)`` that bring the hand to a point, elbow outwards."""
        upper, lower = self.arm.upper_length_m, self.arm.lower_length_m
        cosine = (jp.sum(point**2) - upper**2 - lower**2) / (2.0 * upper * lower)
        elbow = -side * jp.arccos(jp.clip(cosine, -0.999, 0.999))
        shoulder = jp.arctan2(point[0], -point[1]) - jp.arctan2(
            lower * jp.sin(elbow), upper + lower * jp.cos(elbow)
        )
        return jp.stack([shoulder, elbow])


def _angles(obs: Float[jax.Array, "..."]) -> Float[jax.Array, "2"]:
    return jp.stack([jp.arctan2(obs[0], obs[1]), jp.arctan2(obs[2], obs[3])])


def episode_return(
    environment: Any, controller: Any, rng: jax.Array, *, steps: int
) -> Float[jax.Array, ""]:
    """Returns the sum of rewards, over all of its keys, that a controller earns in an episode.

    Args:
        environment: A built-in environment.
        controller: Has ``initial_carry(obs)`` and returns ``(carry, action)`` for a carry and an
            observation.
        rng: Seed of the episode.
        steps: Its length.
    """
    state = environment.reset(rng)

    def step(running: Any, _: None) -> tuple[Any, jax.Array]:
        state, carry = running
        carry, action = controller(carry, state.obs)
        state = environment.step(state, action)
        return (state, carry), sum(jax.tree.leaves(state.reward), jp.zeros((), jp.float32))

    _, rewards = jax.lax.scan(step, (state, controller.initial_carry(state.obs)), length=steps)
    return jp.sum(rewards)


def regulator_gain(
    transition: np.ndarray, steering: np.ndarray, state_cost: np.ndarray, action_cost: np.ndarray
) -> np.ndarray:
    """Returns the gain of the discrete linear-quadratic regulator, ``action = -gain @ state``.

    Iterates the Riccati equation of ``next_state = transition @ state + steering @ action``.
    """
    cost = state_cost
    gain = np.zeros((steering.shape[1], steering.shape[0]))
    for _ in range(5000):
        previous = gain
        gain = np.linalg.solve(
            action_cost + steering.T @ cost @ steering, steering.T @ cost @ transition
        )
        cost = state_cost + transition.T @ cost @ (transition - steering @ gain)
        if np.allclose(gain, previous, rtol=1e-10, atol=0.0):
            break
    return gain
