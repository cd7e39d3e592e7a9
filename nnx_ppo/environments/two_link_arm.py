"""Equations of motion of a planar arm with two links."""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jp
from jaxtyping import Float

from nnx_ppo.environments.rotary_pendulum import GRAVITY_M_S2

ArmState: TypeAlias = Float[jax.Array, "4"]
"""Shoulder angle (0 hangs down), elbow angle (0 is straight), their speeds; in rad and rad/s."""

Joints: TypeAlias = Float[jax.Array, "2"]
"""A value for the shoulder and one for the elbow."""

Point: TypeAlias = Float[jax.Array, "2"]
"""Position to the right and up, in metres."""


@dataclasses.dataclass(frozen=True)
class TwoLinkArm:
    """Two thin uniform rods in a vertical plane, with a motor in shoulder and elbow.

    The equations are the standard ones, for example M. W. Spong, S. Hutchinson and M. Vidyasagar,
    "Robot modeling and control" (2006), section 7.4, with viscous friction in both joints.
    """

    upper_length_m: float = 0.25
    """Length of the link between shoulder and elbow."""
    lower_length_m: float = 0.25
    """Length of the link between elbow and hand."""
    upper_mass_kg: float = 1.0
    """Mass of the upper link."""
    lower_mass_kg: float = 0.8
    """Mass of the lower link."""
    shoulder_friction_nms: float = 0.3
    """Viscous friction of the shoulder, N m s/rad."""
    elbow_friction_nms: float = 0.1
    """Viscous friction of the elbow, N m s/rad."""
    max_shoulder_torque_nm: float = 9.0
    """Torque of an action of 1; holding the arm out straight takes 4.2 N m."""
    max_elbow_torque_nm: float = 3.0
    """Torque of an action of 1; holding the lower link out takes 1.0 N m."""

    @property
    def max_torques_nm(self) -> Joints:
        """Torques of actions of 1."""
        return jp.array([self.max_shoulder_torque_nm, self.max_elbow_torque_nm], jp.float32)

    @property
    def frictions_nms(self) -> Joints:
        """Viscous frictions."""
        return jp.array([self.shoulder_friction_nms, self.elbow_friction_nms], jp.float32)

    def mass_matrix(self, angles: Joints) -> Float[jax.Array, "2 2"]:
        """Returns the matrix that maps accelerations to torques, in kg m^2."""
        lower = self.lower_mass_kg * self.lower_length_m**2 / 3.0
        upper = self.upper_mass_kg * self.upper_length_m**2 / 3.0
        upper += self.lower_mass_kg * self.upper_length_m**2
        coupling = self._coupling_inertia * jp.cos(angles[1])
        off_diagonal = lower + coupling
        return jp.stack(
            [
                jp.stack([upper + lower + 2.0 * coupling, off_diagonal]),
                jp.stack([off_diagonal, jp.full_like(coupling, lower)]),
            ]
        )

    def passive_torques(self, state: ArmState) -> Joints:
        """Returns the torques that gravity, inertia and friction exert on the joints, in N m."""
        (_, elbow), speeds = state[:2], state[2:]
        twist = self._coupling_inertia * jp.sin(elbow)
        inertial = twist * jp.stack([speeds[1] * (2.0 * speeds[0] + speeds[1]), -(speeds[0] ** 2)])
        # Gravity pulls against the gradient of the height of the masses.
        gravity = -jax.grad(self._potential_energy_j)(state[:2])
        return inertial + gravity - self.frictions_nms * speeds

    def derivative(self, state: ArmState, torques_nm: Joints) -> ArmState:
        """Returns velocities and accelerations under motor torques."""
        matrix = self.mass_matrix(state[:2])
        force = torques_nm + self.passive_torques(state)
        determinant = matrix[0, 0] * matrix[1, 1] - matrix[0, 1] ** 2
        accelerations = (
            jp.stack(
                [
                    matrix[1, 1] * force[0] - matrix[0, 1] * force[1],
                    matrix[0, 0] * force[1] - matrix[0, 1] * force[0],
                ]
            )
            / determinant
        )
        return jp.concatenate([state[2:], accelerations])

    def hand(self, angles: Joints) -> Point:
        """Returns where the hand is, relative to the shoulder."""
        shoulder, wrist = angles[0], angles[0] + angles[1]
        return jp.stack(
            [
                self.upper_length_m * jp.sin(shoulder) + self.lower_length_m * jp.sin(wrist),
                -self.upper_length_m * jp.cos(shoulder) - self.lower_length_m * jp.cos(wrist),
            ]
        )

    def energy_j(self, state: ArmState) -> Float[jax.Array, ""]:
        """Returns kinetic plus potential energy in joules, the latter 0 at shoulder height."""
        speeds = state[2:]
        kinetic = 0.5 * speeds @ self.mass_matrix(state[:2]) @ speeds
        return kinetic + self._potential_energy_j(state[:2])

    @property
    def _coupling_inertia(self) -> float:
        return 0.5 * self.lower_mass_kg * self.upper_length_m * self.lower_length_m

    def _potential_energy_j(self, angles: Joints) -> Float[jax.Array, ""]:
        shoulder, wrist = angles[0], angles[0] + angles[1]
        at_shoulder = (0.5 * self.upper_mass_kg + self.lower_mass_kg) * self.upper_length_m
        at_elbow = 0.5 * self.lower_mass_kg * self.lower_length_m
        return -GRAVITY_M_S2 * (at_shoulder * jp.cos(shoulder) + at_elbow * jp.cos(wrist))
