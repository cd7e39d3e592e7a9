"""A mechanism simulated by MuJoCo, seen as the two callables of a control loop.

MuJoCo is imported when a plant is made, not with this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving.errors import PlantError
from serving.extras import import_extra

# A deadline of the loop and the sum of its waits differ by rounding; far below any time step.
_ROUNDING = 1e-6


class MujocoPlant:
    """A model in MuJoCo that moves on as time goes by, as a robot does.

    `read` and `apply` first let the mechanism move until now, under the controls set last. What
    "now" means is the clock's: with the plant's own `clock` and `sleep` a control loop runs in
    simulated time, as fast as it can and the same each time; with `time.perf_counter` it runs in
    real time, and whatever the loop is late by, the mechanism has moved on.

    Example:
        plant = MujocoPlant("robot.xml", observe=lambda data: data.sensordata.astype(np.float32))
        loop = ControlLoop(
            session, plant.read, plant.apply, rate_hz=50.0, clock=plant.clock, sleep=plant.sleep
        )
        loop.run(duration_s=10.0)

    Args:
        model: an MJCF file, or a `mujoco.MjModel`.
        observe: makes an observation of a `mujoco.MjData`, whose arrays it must not keep; None for
            positions and velocities as one float32 array.
        act: writes an action into `data.ctrl`; None for an action that is one array of all
            controls. Limits of the controls are the model's business.
        clock: returns seconds; None for simulated time.

    Raises:
        PlantError: if the model cannot be loaded.
        RuntimeUnavailableError: if MuJoCo is not installed.
    """

    def __init__(
        self,
        model: Any,
        *,
        observe: Callable[[Any], Any] | None = None,
        act: Callable[[Any, Any], Any] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._mujoco = import_extra("mujoco", extra="mujoco", what="a MujocoPlant")
        self.model = self._load(model) if isinstance(model, str | Path) else model
        """The `mujoco.MjModel`."""
        self.data = self._mujoco.MjData(self.model)
        """Its `mujoco.MjData`: what the mechanism does now, or did at the last `read`."""
        self._observe = _positions_and_velocities if observe is None else observe
        self._act = _set_controls if act is None else act
        self._clock = self.clock if clock is None else clock
        self._simulated_s = 0.0
        self.reset()

    def reset(
        self,
        positions: np.ndarray | Sequence[float] | None = None,
        velocities: np.ndarray | Sequence[float] | None = None,
    ) -> None:
        """Puts the mechanism somewhere, with the controls at zero; its time starts again.

        Args:
            positions: `data.qpos`; None for those of the model.
            velocities: `data.qvel`; None for rest.

        Raises:
            PlantError: if there are more or fewer numbers than the model has.
        """
        given = {"qpos": positions, "qvel": velocities}
        for name, values in given.items():
            size = getattr(self.data, name).size
            if values is not None and np.shape(values) != (size,):
                raise PlantError(f"{name}: shape {np.shape(values)}, expected ({size},)")
        self._mujoco.mj_resetData(self.model, self.data)
        for name, values in given.items():
            if values is not None:
                getattr(self.data, name)[:] = values
        self._mujoco.mj_forward(self.model, self.data)
        self._began_s = self._clock()
        self._steps = 0

    def read(self) -> Any:
        """Lets the mechanism move until now and returns what `observe` makes of it.

        Raises:
            PlantError: if the simulation became unstable.
        """
        self._move_on()
        return self._observe(self.data)

    def apply(self, action: Any) -> None:
        """Lets the mechanism move until now and sets the controls, which stay until the next call.

        Raises:
            PlantError: if the simulation became unstable, or the action does not fit the controls.
        """
        self._move_on()
        self._act(self.data, action)

    def clock(self) -> float:
        """Returns the simulated time in seconds, which goes on in `sleep` alone."""
        return self._simulated_s

    def sleep(self, duration_s: float) -> None:
        """Lets simulated time go by; takes no time itself."""
        self._simulated_s += max(0.0, duration_s)

    def _move_on(self) -> None:
        due_s = self._clock() - self._began_s
        due = math.floor(due_s / self.model.opt.timestep + _ROUNDING)
        if due > self._steps:
            self._mujoco.mj_step(self.model, self.data, due - self._steps)
            self._steps = due
            # Positions have moved after everything that follows from them was computed.
            self._mujoco.mj_forward(self.model, self.data)
            self._refuse_instability()

    def _refuse_instability(self) -> None:
        kinds = self._mujoco.mjtWarning
        for kind in (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC):
            if self.data.warning[int(kind)].number:
                raise PlantError(
                    f"the simulation became unstable ({kind.name}) within "
                    f"{self._steps * self.model.opt.timestep:.3f} s, and MuJoCo has begun anew; "
                    "a shorter timestep in the model's option element may help"
                )

    def _load(self, file: str | Path) -> Any:
        if not Path(file).is_file():
            raise PlantError(f"{file}: there is no such file; expected a model as MJCF")
        try:
            return self._mujoco.MjModel.from_xml_path(str(file))
        except ValueError as error:
            raise PlantError(f"{file}: MuJoCo cannot load it: {error}") from error


def _positions_and_velocities(data: Any) -> np.ndarray:
    return np.concatenate([data.qpos, data.qvel]).astype(np.float32)


def _set_controls(data: Any, action: Any) -> None:
    values = np.asarray(action)
    if values.shape != data.ctrl.shape:
        raise PlantError(
            f"the action has shape {values.shape}, but the model has controls of shape "
            f"{data.ctrl.shape}; give the plant an act(data, action) that writes data.ctrl"
        )
    data.ctrl[:] = values
