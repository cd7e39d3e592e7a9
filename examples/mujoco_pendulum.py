"""Let a policy that was trained in JAX act on the same mechanism in MuJoCo.

    make demo
    python examples/mujoco_pendulum.py runs/demo-*/policy

For a policy of the environment `balance` add --balance, for the exported C --runtime c. The
mechanism is in rotary_pendulum.xml. This process needs MuJoCo and what a robot needs, no JAX.
--picture writes what a camera sees; it needs OpenGL, without a screen for example MUJOCO_GL=egl in
the environment.
"""

import argparse
import struct
import time
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from serving import ControlLoop, LoopReport, MujocoPlant, Session, load_policy

MODEL = Path(__file__).with_name("rotary_pendulum.xml")
RATE_HZ = 100.0
EPISODE_STEPS = 1000
FALLEN_RAD = 1.0
PICTURE_TIMES_S = (0.0, 0.4, 0.8, 1.2, 2.0, 2.3, 4.0)


class Pendulum:
    """The pendulum with the sensors, the reward and the end of the environments in JAX.

    Args:
        delay_steps: age of every reading in control steps.
        ends_when_fallen: whether an episode ends far from upright, as in `balance`.
        clock: returns seconds; None for simulated time.
    """

    def __init__(
        self, *, delay_steps: int = 3, ends_when_fallen: bool = False, clock: Any = None
    ) -> None:
        self.plant = MujocoPlant(MODEL, observe=self._observe, clock=clock)
        self.episode_return = 0.0
        self.fallen = False
        self._ends_when_fallen = ends_when_fallen
        self._readings: deque[np.ndarray] = deque(maxlen=delay_steps + 1)

    def begin(self, start: np.ndarray) -> None:
        """Begins an episode at arm angle, pendulum angle and their speeds, in rad and rad/s."""
        self.episode_return = 0.0
        self.fallen = False
        self._readings.clear()
        self.plant.reset(start[:2], start[2:])

    def _observe(self, data: Any) -> np.ndarray:
        """Reads the sensors, once in a control step, and returns the oldest reading kept."""
        arm, pendulum, arm_speed, speed = data.sensordata
        if self._readings:
            upright = (0.5 * (1.0 + np.cos(pendulum))) ** 2
            still = 1.0 / (1.0 + (arm_speed / 8.0) ** 2 + (speed / 5.0) ** 2)
            centred = 0.25 * (3.0 + np.cos(arm))
            self.episode_return += 10.0 / RATE_HZ * upright * still * centred
            self.fallen = self._ends_when_fallen and abs(pendulum) > FALLEN_RAD
        angles = [np.sin(arm), np.cos(arm), np.sin(pendulum), np.cos(pendulum)]
        self._readings.append(np.array(angles, np.float32))
        return self._readings[0]


def run_episode(
    pendulum: Pendulum, session: Session, start: np.ndarray, *, steps: int = EPISODE_STEPS
) -> LoopReport:
    """Runs one episode in a control loop, in the plant's time; the return is the pendulum's."""
    plant = pendulum.plant
    session.reset()
    pendulum.begin(start)

    def read() -> np.ndarray:
        observation = plant.read()
        if pendulum.fallen:
            loop.stop()
        return observation

    timing = {"clock": plant.clock, "sleep": plant.sleep}
    loop = ControlLoop(session, read, plant.apply, rate_hz=RATE_HZ, **timing)
    report = loop.run(steps=steps)
    if not pendulum.fallen:
        plant.sleep(1.0 / RATE_HZ)  # what the last action led to
        plant.read()
    return report


def run_in_real_time(
    session: Session, start: np.ndarray, *, duration_s: float, **task: Any
) -> tuple[Pendulum, LoopReport]:
    """Runs an episode against the wall clock: whatever is late meets a pendulum that moved on."""
    pendulum = Pendulum(clock=time.perf_counter, **task)
    pendulum.begin(start)
    loop = ControlLoop(session, pendulum.plant.read, pendulum.plant.apply, rate_hz=RATE_HZ)
    return pendulum, loop.run(duration_s=duration_s)


def starts(count: int, *, balance: bool, seed: int = 0) -> np.ndarray:
    """Draws states to begin with, `[count, 4]`, as the environments in JAX do."""
    spreads = [0.3, 0.25, 0.3, 0.3] if balance else [0.5, np.pi, 0.5, 0.5]
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (count, 4)) * spreads


def draw(session: Session, file: Path) -> None:
    """Writes a strip of pictures of one swing-up, from hanging at rest."""
    import mujoco

    pendulum = Pendulum()
    plant = pendulum.plant
    session.reset()
    pendulum.begin(np.array([0.0, np.pi, 0.0, 0.0]))
    frames = []
    with mujoco.Renderer(plant.model, 230, 220) as renderer:
        for step in range(1 + round(max(PICTURE_TIMES_S) * RATE_HZ)):
            observation = plant.read()
            if any(abs(step / RATE_HZ - when_s) < 1e-9 for when_s in PICTURE_TIMES_S):
                renderer.update_scene(plant.data, camera="side")
                frames += [renderer.render(), np.full((230, 4, 3), 255, np.uint8)]
            plant.apply(session.step(observation))
            plant.sleep(1.0 / RATE_HZ)
    write_png(file, np.concatenate(frames[:-1], axis=1))


def write_png(file: Path, pixels: np.ndarray) -> None:
    """Writes an image `[height, width, 3]` of uint8."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    # Each row as its difference from the one above, which compresses well.
    above = np.vstack([np.zeros((1, *pixels.shape[1:]), np.uint8), pixels[:-1]])
    rows = (pixels - above).reshape(height, -1)
    filtered = np.hstack([np.full((height, 1), 2, np.uint8), rows])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(filtered.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runtime", default="onnx")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--balance", action="store_true", help="begin upright, end when fallen")
    parser.add_argument("--real-time-s", type=float, help="then run this long in real time")
    parser.add_argument("--picture", type=Path, help="write a strip of pictures of one swing-up")
    arguments = parser.parse_args()

    session = load_policy(arguments.bundle, runtime=arguments.runtime).session()
    pendulum = Pendulum(ends_when_fallen=arguments.balance)
    returns = []
    began_s = time.perf_counter()
    for start in starts(arguments.episodes, balance=arguments.balance):
        run_episode(pendulum, session, start)
        returns.append(pendulum.episode_return)
    seconds = time.perf_counter() - began_s
    print(f"{len(returns)} episodes in {seconds:.1f} s, return {np.mean(returns):.2f}")
    print(f"lowest {min(returns):.2f}, highest {max(returns):.2f}")
    if arguments.real_time_s is not None:
        session.reset()
        start = starts(1, balance=arguments.balance)[0]
        late, report = run_in_real_time(session, start, duration_s=arguments.real_time_s)
        print(f"real time: {report.achieved_rate_hz:.2f} Hz, {report.misses} misses")
        print(f"return {late.episode_return:.2f} in {arguments.real_time_s:g} s")
    if arguments.picture is not None:
        draw(session, arguments.picture)


if __name__ == "__main__":
    main()
