import dataclasses

import jax
import jax.numpy as jp
import numpy as np
import pytest
from rigid_rods import rod, simulate

from nnx_ppo.environments.integration import runge_kutta_4
from nnx_ppo.environments.rotary_pendulum import GRAVITY_M_S2
from nnx_ppo.environments.two_link_arm import TwoLinkArm

ARM = TwoLinkArm()
FRICTIONLESS = dataclasses.replace(ARM, shoulder_friction_nms=0.0, elbow_friction_nms=0.0)
START = jp.array([1.2, -0.7, 1.0, -2.0], jp.float32)
NO_TORQUES = jp.zeros(2, jp.float32)


def points_of(angles: np.ndarray) -> list[tuple[float, np.ndarray]]:
    shoulder, wrist = angles[0], angles[0] + angles[1]
    elbow = ARM.upper_length_m * np.array([np.sin(shoulder), -np.cos(shoulder)])
    hand = elbow + ARM.lower_length_m * np.array([np.sin(wrist), -np.cos(wrist)])
    return rod(ARM.upper_mass_kg, np.zeros(2), elbow) + rod(ARM.lower_mass_kg, elbow, hand)


@pytest.mark.parametrize("torques_nm", [(0.0, 0.0), (4.0, -1.0)])
def test_motion_is_that_of_rods_in_a_plane(torques_nm: tuple[float, float]) -> None:
    moved = runge_kutta_4(
        lambda state: ARM.derivative(state, jp.array(torques_nm, jp.float32)),
        START,
        duration_s=0.5,
        substeps=100,
    )
    expected = simulate(
        points_of,
        np.asarray(START[:2], np.float64),
        np.asarray(START[2:], np.float64),
        torques=np.array(torques_nm),
        frictions=np.array([ARM.shoulder_friction_nms, ARM.elbow_friction_nms]),
        gravity=GRAVITY_M_S2,
        duration_s=0.5,
    )
    np.testing.assert_allclose(np.asarray(moved), expected, atol=1e-3)


def test_energy_is_conserved_without_friction_and_torque() -> None:
    def move(state: jax.Array) -> jax.Array:
        return runge_kutta_4(
            lambda state: FRICTIONLESS.derivative(state, NO_TORQUES),
            state,
            duration_s=5.0,
            substeps=1000,
        )

    before = FRICTIONLESS.energy_j(START)
    after = FRICTIONLESS.energy_j(jax.jit(move)(START))
    assert abs(float(after - before)) < 1e-3  # of several joules


def test_the_hand_is_where_the_links_end() -> None:
    hanging = ARM.hand(jp.zeros(2, jp.float32))
    np.testing.assert_allclose(np.asarray(hanging), [0.0, -0.5], atol=1e-6)
    bent = ARM.hand(jp.array([jp.pi / 2, jp.pi / 2], jp.float32))
    np.testing.assert_allclose(np.asarray(bent), [0.25, 0.25], atol=1e-6)


def test_the_motors_can_hold_the_arm_out() -> None:
    stretched = jp.array([jp.pi / 2, 0.0, 0.0, 0.0], jp.float32)
    needed = -np.asarray(ARM.passive_torques(stretched))
    np.testing.assert_allclose(needed, [4.17, 0.98], atol=0.01)
    assert np.all(np.abs(needed) < 0.5 * np.asarray(ARM.max_torques_nm))
