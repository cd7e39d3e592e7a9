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

    def mass_matrix(self, angles: Joints) -> Float[jax.Array, "2 2"]:
        """Returns the matrix that maps accelerations to torques, in kg m^2."""
        shoulder, coupling, elbow = self._inertias(angles)
        return jp.stack([jp.stack([shoulder, coupling]), jp.stack([coupling, elbow])])

    def passive_torques(self, state: ArmState) -> Joints:
        """Returns the torques that gravity, inertia and friction exert on the joints, in N m."""
        shoulder, elbow, shoulder_speed, elbow_speed = state
        twist = self._coupling_inertia * jp.sin(elbow)
        lower_weight = self._lower_weight_nm * jp.sin(shoulder + elbow)
        return jp.stack(
            [
                twist * elbow_speed * (2.0 * shoulder_speed + elbow_speed)
                - self._upper_weight_nm * jp.sin(shoulder)
                - lower_weight
                - self.shoulder_friction_nms * shoulder_speed,
                -twist * shoulder_speed**2 - lower_weight - self.elbow_friction_nms * elbow_speed,
            ]
        )

    def derivative(self, state: ArmState, torques_nm: Joints) -> ArmState:
        """Returns velocities and accelerations under motor torques."""
        shoulder, coupling, elbow = self._inertias(state[:2])
        force_shoulder, force_elbow = torques_nm + self.passive_torques(state)
        determinant = shoulder * elbow - coupling**2
        return jp.stack(
            [
                state[2],
                state[3],
                (elbow * force_shoulder - coupling * force_elbow) / determinant,
                (shoulder * force_elbow - coupling * force_shoulder) / determinant,
            ]
        )

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

    def _inertias(self, angles: Joints) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the mass matrix's entries: shoulder, off the diagonal, elbow."""
        upper = (self.upper_mass_kg / 3.0 + self.lower_mass_kg) * self.upper_length_m**2
        lower = self.lower_mass_kg * self.lower_length_m**2 / 3.0
        coupling = self._coupling_inertia * jp.cos(angles[1])
        return upper + lower + 2.0 * coupling, lower + coupling, jp.full_like(coupling, lower)

    def _potential_energy_j(self, angles: Joints) -> Float[jax.Array, ""]:
        upper = self._upper_weight_nm * jp.cos(angles[0])
        return -upper - self._lower_weight_nm * jp.cos(angles[0] + angles[1])

    @property
    def _coupling_inertia(self) -> float:
        return 0.5 * self.lower_mass_kg * self.upper_length_m * self.lower_length_m

    @property
    def _upper_weight_nm(self) -> float:
        """Torque of gravity on the horizontal upper link, which also bears the elbow."""
        mass = 0.5 * self.upper_mass_kg + self.lower_mass_kg
        return GRAVITY_M_S2 * mass * self.upper_length_m

    @property
    def _lower_weight_nm(self) -> float:
        """Torque of gravity on the horizontal lower link."""
        return GRAVITY_M_S2 * 0.5 * self.lower_mass_kg * self.lower_length_m
