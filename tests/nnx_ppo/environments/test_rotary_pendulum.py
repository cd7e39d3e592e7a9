import dataclasses

import jax
import jax.numpy as jp
import numpy as np
import pytest
from rigid_rods import rod, simulate

from nnx_ppo.environments.integration import runge_kutta_4
from nnx_ppo.environments.rotary_pendulum import GRAVITY_M_S2, RotaryPendulum, wrap_angle

PENDULUM = RotaryPendulum()
FRICTIONLESS = dataclasses.replace(PENDULUM, arm_friction_nms=0.0, pendulum_friction_nms=0.0)
START = jp.array([0.3, 2.0, -3.0, 4.0], jp.float32)


def points_of(angles: np.ndarray) -> list[tuple[float, np.ndarray]]:
    arm, pendulum = angles
    outwards = np.array([np.cos(arm), np.sin(arm), 0.0])
    sideways = np.array([-np.sin(arm), np.cos(arm), 0.0])
    up = np.array([0.0, 0.0, 1.0])
    hinge = PENDULUM.arm_length_m * outwards
    tip = hinge + PENDULUM.pendulum_length_m * (np.sin(pendulum) * sideways + np.cos(pendulum) * up)
    return rod(PENDULUM.arm_mass_kg, np.zeros(3), hinge) + rod(
        PENDULUM.pendulum_mass_kg, hinge, tip
    )


@pytest.mark.parametrize("torque_nm", [0.0, 0.03])
@pytest.mark.parametrize("start", [START, jp.array([0.0, 3.0, 20.0, -10.0], jp.float32)])
def test_motion_is_that_of_rods_in_space(torque_nm: float, start: jax.Array) -> None:
    moved = runge_kutta_4(
        lambda state: PENDULUM.derivative(state, jp.float32(torque_nm)),
        start,
        duration_s=0.3,
        substeps=60,
    )
    expected = simulate(
        points_of,
        np.asarray(start[:2], np.float64),
        np.asarray(start[2:], np.float64),
        torques=np.array([torque_nm, 0.0]),
        frictions=np.array([PENDULUM.arm_friction_nms, PENDULUM.pendulum_friction_nms]),
        gravity=GRAVITY_M_S2,
        duration_s=0.3,
    )
    # Speeds reach 20 rad/s.
    np.testing.assert_allclose(np.asarray(moved), expected, atol=2e-3)


def test_energy_is_conserved_without_friction_and_torque() -> None:
    def move(state: jax.Array) -> jax.Array:
        return runge_kutta_4(
            lambda state: FRICTIONLESS.derivative(state, jp.float32(0.0)),
            state,
            duration_s=5.0,
            substeps=1000,
        )

    before = FRICTIONLESS.energy_j(START)
    after = FRICTIONLESS.energy_j(jax.jit(move)(START))
    lift = 2.0 * FRICTIONLESS.gravity_torque_nm  # from hanging to upright
    assert abs(float(after - before)) < 1e-4 * lift


def test_friction_takes_energy_and_torque_gives_it() -> None:
    torque = jp.float32(0.02)

    def power(pendulum: RotaryPendulum, torque: jax.Array) -> float:
        change = pendulum.derivative(START, torque)
        return float(jax.grad(pendulum.energy_j)(START) @ change)

    arm_speed, speed = float(START[2]), float(START[3])
    assert power(FRICTIONLESS, torque) == pytest.approx(0.02 * arm_speed, rel=1e-4)
    lost = PENDULUM.arm_friction_nms * arm_speed**2 + PENDULUM.pendulum_friction_nms * speed**2
    assert power(PENDULUM, jp.float32(0.0)) == pytest.approx(-lost, rel=1e-3)


def test_upright_and_hanging_are_the_places_of_rest() -> None:
    for angle in (0.0, jp.pi):
        state = jp.array([1.0, angle, 0.0, 0.0], jp.float32)
        rate = PENDULUM.derivative(state, jp.float32(0.0))
        np.testing.assert_allclose(np.asarray(rate), 0.0, atol=1e-4)
    # Let go beside the top, it falls away from it; beside the bottom, back to it.
    beside = [jp.array([0.0, angle, 0.0, 0.0], jp.float32) for angle in (0.1, jp.pi - 0.1)]
    accelerations = [float(PENDULUM.derivative(state, jp.float32(0.0))[3]) for state in beside]
    assert accelerations[0] > 1.0
    assert accelerations[1] > 1.0


def test_the_motor_cannot_hold_the_pendulum_sideways() -> None:
    arm_acceleration = PENDULUM.max_torque_nm / PENDULUM.arm_inertia
    push = PENDULUM.coupling_inertia * arm_acceleration
    assert push < 0.7 * PENDULUM.gravity_torque_nm


def test_wrapping_keeps_the_angle() -> None:
    angles = jp.array([-7.0, -3.0, 0.0, 3.0, 4.0, 20.0 * jp.pi + 0.5], jp.float32)
    wrapped = wrap_angle(angles)
    assert bool(jp.all(jp.abs(wrapped) <= jp.pi))
    np.testing.assert_allclose(np.sin(wrapped), np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(np.cos(wrapped), np.cos(angles), atol=1e-5)
