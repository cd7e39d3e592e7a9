"""A mechanism in MuJoCo as the plant of a control loop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from serving import ControlLoop, MujocoPlant, PlantError, RuntimeUnavailableError

SLIDER = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0" integrator="RK4"/>
  <worldbody>
    <body>
      <joint name="slide" type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.1" mass="2"/>
    </body>
  </worldbody>
  <actuator><motor joint="slide" ctrllimited="true" ctrlrange="-4 4"/></actuator>
</mujoco>
"""


@pytest.fixture
def model() -> Any:
    return mujoco.MjModel.from_xml_string(SLIDER)


class Pushing:
    """A session that pushes with a constant force."""

    def __init__(self, force: float) -> None:
        self.force = force

    def step(self, observation: np.ndarray) -> np.ndarray:
        return np.array([self.force], np.float32)


def test_it_moves_in_simulated_time_under_the_controls_set_last(model: Any) -> None:
    plant = MujocoPlant(model)
    plant.reset([0.5], [1.0])
    np.testing.assert_array_equal(plant.read(), np.array([0.5, 1.0], np.float32))
    plant.apply(np.array([2.0]))  # 1 m/s^2
    plant.sleep(0.2)
    np.testing.assert_allclose(plant.read(), [0.5 + 0.2 + 0.02, 1.2], rtol=1e-6)
    plant.apply(np.array([-100.0]))  # limited to -2 m/s^2 by the model
    plant.sleep(0.1)
    np.testing.assert_allclose(plant.read(), [0.72 + 0.12 - 0.01, 1.0], rtol=1e-6)
    assert plant.clock() == pytest.approx(0.3)


def test_waits_shorter_than_a_time_step_add_up(model: Any) -> None:
    plant = MujocoPlant(model)
    plant.reset([0.0], [1.0])
    for _ in range(1000):
        plant.sleep(0.0007)
        plant.read()
    np.testing.assert_allclose(plant.read(), [0.70, 1.0], rtol=1e-6)


def test_a_loop_runs_in_simulated_time_without_a_miss(model: Any) -> None:
    plant = MujocoPlant(model)
    read = []
    loop = ControlLoop(
        Pushing(1.0),
        lambda: read.append(plant.read()) or read[-1],
        plant.apply,
        rate_hz=20.0,
        clock=plant.clock,
        sleep=plant.sleep,
    )
    report = loop.run(duration_s=30.0)
    assert (report.steps, report.misses) == (600, 0)
    assert report.achieved_rate_hz == pytest.approx(20.0, rel=0.01)
    times = np.arange(600) / 20.0
    expected = np.stack([0.25 * times**2, 0.5 * times], axis=1)  # 0.5 m/s^2
    np.testing.assert_allclose(np.array(read), expected, rtol=1e-5, atol=1e-6)


def test_by_a_clock_of_ones_own_it_moves_on_whatever_one_does(model: Any) -> None:
    now = [50.0]
    plant = MujocoPlant(model, clock=lambda: now[0])
    plant.reset([0.0], [1.0])
    now[0] += 0.5
    np.testing.assert_allclose(plant.read(), [0.5, 1.0], rtol=1e-6)
    now[0] += 0.25
    plant.apply(np.array([2.0]))  # so late does it take effect
    now[0] += 0.1
    np.testing.assert_allclose(plant.read(), [0.75 + 0.1 + 0.005, 1.1], rtol=1e-6)
    plant.reset([0.0], [2.0])
    now[0] += 0.1
    np.testing.assert_allclose(plant.read(), [0.2, 2.0], rtol=1e-6)


def test_observation_and_action_are_what_the_callables_say(model: Any) -> None:
    plant = MujocoPlant(
        model,
        observe=lambda data: {"speed": float(data.qvel[0])},
        act=lambda data, action: np.copyto(data.ctrl, 4.0 * action["push"]),
    )
    plant.apply({"push": 0.5})
    plant.sleep(0.1)
    assert plant.read() == {"speed": pytest.approx(0.1)}


def test_a_reset_takes_controls_and_motion_back(model: Any) -> None:
    plant = MujocoPlant(model)
    plant.apply(np.array([3.0]))
    plant.sleep(1.0)
    plant.read()
    plant.reset()
    plant.sleep(1.0)
    np.testing.assert_array_equal(plant.read(), np.zeros(2, np.float32))


def test_what_does_not_fit_the_model_is_refused(model: Any) -> None:
    plant = MujocoPlant(model)
    with pytest.raises(PlantError, match=r"qpos: shape \(2,\), expected \(1,\)"):
        plant.reset([0.0, 1.0])
    with pytest.raises(PlantError, match=r"action has shape \(3,\).*controls of shape \(1,\)"):
        plant.apply(np.zeros(3))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlantError, match=r"none.xml: there is no such file"):
        MujocoPlant(tmp_path / "none.xml")
    (tmp_path / "half.xml").write_text("<mujoco><worldbody>")
    with pytest.raises(PlantError, match=r"half.xml: MuJoCo cannot load it"):
        MujocoPlant(tmp_path / "half.xml")


def test_an_unstable_simulation_ends_in_an_error(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    plant = MujocoPlant(model)
    plant.reset(None, [1e9])
    with pytest.raises(PlantError, match=r"became unstable \(mjWARN_BADQ(POS|VEL)\)"):
        for _ in range(100):
            plant.sleep(1.0)
            plant.read()


def test_without_mujoco_the_install_command_is_named(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(RuntimeUnavailableError, match=r'pip install "nnx-ppo-deploy\[mujoco\]"'):
        MujocoPlant(model)
