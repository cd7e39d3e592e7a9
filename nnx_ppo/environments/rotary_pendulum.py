"""Equations of motion of a rotary (Furuta) pendulum."""

import dataclasses
import math
from typing import TypeAlias

import jax
import jax.numpy as jp
from jaxtyping import Float

GRAVITY_M_S2 = 9.81

MechanismState: TypeAlias = Float[jax.Array, "4"]
"""Arm angle, pendulum angle (0 is upright), arm speed, pendulum speed; in rad and rad/s."""


@dataclasses.dataclass(frozen=True)
class RotaryPendulum:
    """A motor turns a horizontal arm; at the arm's tip a rod swings freely in the vertical plane
    perpendicular to the arm.

    Two degrees of freedom and one actuator. The equations are those of K. Furuta, M. Yamakita and
    S. Kobayashi, "Swing-up control of inverted pendulum using pseudo-state feedback" (1992), for
    thin uniform rods, with viscous friction in both joints.
    """

    arm_length_m: float = 0.085
    """Distance from the motor's axis to the pendulum's hinge."""
    arm_mass_kg: float = 0.095
    """Mass of the arm."""
    pendulum_length_m: float = 0.13
    """Length of the swinging rod."""
    pendulum_mass_kg: float = 0.024
    """Mass of the swinging rod."""
    arm_friction_nms: float = 2e-4
    """Viscous friction of the motor, N m s/rad; it limits the arm's speed."""
    pendulum_friction_nms: float = 1e-5
    """Viscous friction of the hinge, N m s/rad."""
    max_torque_nm: float = 0.03
    """Torque of an action of 1: not enough to lift the pendulum in one push."""

    @property
    def arm_inertia(self) -> float:
        """Inertia about the motor's axis with the pendulum's mass at the hinge, kg m^2."""
        hinge_mass = self.arm_mass_kg / 3.0 + self.pendulum_mass_kg
        return hinge_mass * self.arm_length_m**2

    @property
    def pendulum_inertia(self) -> float:
        """Inertia of the pendulum about its hinge, kg m^2."""
        return self.pendulum_mass_kg * self.pendulum_length_m**2 / 3.0

    @property
    def coupling_inertia(self) -> float:
        """Inertia that couples the two joints where the pendulum is vertical, kg m^2."""
        return self.pendulum_mass_kg * self.arm_length_m * self.pendulum_length_m / 2.0

    @property
    def gravity_torque_nm(self) -> float:
        """Torque of gravity on the pendulum where it is horizontal."""
        return self.pendulum_mass_kg * GRAVITY_M_S2 * self.pendulum_length_m / 2.0

    def derivative(self, state: MechanismState, torque_nm: Float[jax.Array, ""]) -> MechanismState:
        """Returns velocities and accelerations under a motor torque."""
        _, angle, arm_speed, speed = state
        sine, cosine = jp.sin(angle), jp.cos(angle)
        mass_arm = self.arm_inertia + self.pendulum_inertia * sine**2
        mass_coupling = self.coupling_inertia * cosine
        mass_pendulum = self.pendulum_inertia

        twist = self.pendulum_inertia * sine * cosine
        force_arm = (
            torque_nm
            - self.arm_friction_nms * arm_speed
            - 2.0 * twist * arm_speed * speed
            + self.coupling_inertia * sine * speed**2
        )
        force_pendulum = (
            self.gravity_torque_nm * sine
            - self.pendulum_friction_nms * speed
            + twist * arm_speed**2
        )
        determinant = mass_arm * mass_pendulum - mass_coupling**2
        return jp.stack(
            [
                arm_speed,
                speed,
                (mass_pendulum * force_arm - mass_coupling * force_pendulum) / determinant,
                (mass_arm * force_pendulum - mass_coupling * force_arm) / determinant,
            ]
        )

    def energy_j(self, state: MechanismState) -> Float[jax.Array, ""]:
        """Returns kinetic plus potential energy in joules, 0 for resting upright."""
        _, angle, arm_speed, speed = state
        mass_arm = self.arm_inertia + self.pendulum_inertia * jp.sin(angle) ** 2
        kinetic = (
            0.5 * mass_arm * arm_speed**2
            + self.coupling_inertia * jp.cos(angle) * arm_speed * speed
            + 0.5 * self.pendulum_inertia * speed**2
        )
        return kinetic + self.gravity_torque_nm * (jp.cos(angle) - 1.0)


def wrap_angle(angle: Float[jax.Array, "*shape"]) -> Float[jax.Array, "*shape"]:
    """Returns the same angle within [-pi, pi], in rad; angles that grow lose precision."""
    return angle - 2.0 * math.pi * jp.round(angle / (2.0 * math.pi))
