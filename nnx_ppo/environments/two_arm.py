"""Two arms that follow the ends of a moving bar together."""

from typing import Any

import jax
import jax.numpy as jp
from jaxtyping import Float

from nnx_ppo.environments.integration import runge_kutta_4
from nnx_ppo.environments.rotary_pendulum import wrap_angle
from nnx_ppo.environments.state import EnvironmentState
from nnx_ppo.environments.two_link_arm import Point, TwoLinkArm
from nnx_ppo.networks.types import AnyArray

ARMS = ("arm_L", "arm_R")
SIDE = {"arm_L": -1.0, "arm_R": 1.0}
SHOULDER_OFFSET_M = 0.2
RESET_BEND_RAD = 0.6
RESET_SPREAD = 0.2

BAR_HALF_LENGTH_M = 0.2
BAR_HEIGHT_M = -0.3
# The bar's centre moves to the side and up and down by as much, and tilts by as much; each
# oscillates with a frequency of its own, drawn for each episode.
BAR_AMPLITUDES = (0.08, 0.06, 0.25)
BAR_FREQUENCIES_RAD_S = (1.0, 2.0)

REWARD_PER_S = 5.0
REACHED_DISTANCE_M = 0.05
OBSERVED_SPEED_RAD_S = 5.0
OBSERVED_LENGTH_M = 0.2


class TwoArm:
    """Two arms with two links each hold on to a bar that drifts and tilts in front of them.

    Everything lies in one vertical plane, with gravity. Each hand has to follow its end of the bar.
    Trees of dicts:

    - observation: for ``arm_L`` and ``arm_R`` ``proprioception`` ``(6,)``, sine and cosine of
      shoulder and elbow and their speeds, and ``target`` ``(4,)``, where the end is as seen from
      the hand and how the end moves; for ``root`` the ``bar`` ``(6,)``, its centre, sine and
      cosine of its tilt, and the centre's velocity.
    - action: for each arm ``(2,)``, torques of shoulder and elbow as fractions of the largest,
      clipped to [-1, 1].
    - reward: for each arm at a rate of up to 5 per second, so that both together return at most
      100 per episode; in a step 0.1 times ``own * (1 + other) / 2`` with ``1 / (1 + (d / 5 cm)^2)``
      for the distance d of each hand. An arm earns its full reward only while the other holds on
      too.

    Example:
        >>> environment = TwoArm()
        >>> state = environment.reset(jax.random.key(0))
        >>> sorted(state.obs), state.obs["arm_L"]["target"].shape
        (['arm_L', 'arm_R', 'root'], (4,))
    """

    control_rate_hz: float = 50.0
    """Steps per second."""
    episode_length: int = 500
    """Steps of an episode, 10 s, for ``EpisodeWrapper`` and evaluation."""
    solved_return: float = 80.0
    """Mean return of whole episodes, summed over both arms, that counts as solving the task.

    ``reference_controllers.TwoArmController`` reaches more.
    """
    substeps: int = 2
    """Integration steps per control step."""

    def __init__(self, arm: TwoLinkArm | None = None):
        """Makes the environment.

        Args:
            arm: The mechanism of either arm; the usual one if None.
        """
        self.arm = TwoLinkArm() if arm is None else arm

    @property
    def observation_size(self) -> dict[str, dict[str, int]]:
        """Widths of the observation, in its own structure."""
        per_arm = {"proprioception": 6, "target": 4}
        return {**{name: dict(per_arm) for name in ARMS}, "root": {"bar": 6}}

    @property
    def action_size(self) -> dict[str, int]:
        """Number of actions of each arm."""
        return dict.fromkeys(ARMS, 2)

    def reset(self, rng: jax.Array) -> EnvironmentState:
        """Returns the start of an episode: arms that hang with bent elbows, a bar somewhere."""
        arms_key, phase_key, frequency_key = jax.random.split(rng, 3)
        spread = RESET_SPREAD * jax.random.normal(arms_key, (2, 4), jp.float32)
        bend = jp.array([0.5 * RESET_BEND_RAD, -RESET_BEND_RAD, 0.0, 0.0], jp.float32)
        low, high = BAR_FREQUENCIES_RAD_S
        mechanism = {name: spread[index] + SIDE[name] * bend for index, name in enumerate(ARMS)} | {
            "bar_phases": jax.random.uniform(
                phase_key, (3,), jp.float32, minval=-jp.pi, maxval=jp.pi
            ),
            "bar_frequencies": jax.random.uniform(
                frequency_key, (3,), jp.float32, minval=low, maxval=high
            ),
        }
        zero = jp.zeros((), jp.float32)
        return EnvironmentState(
            obs=self.observe(mechanism),
            done=zero,
            reward=dict.fromkeys(ARMS, zero),
            info={},
            metrics={"distance_m": self.distances(mechanism)},
            mechanism=mechanism,
        )

    def step(
        self, state: EnvironmentState, action: dict[str, Float[AnyArray, "2"]]
    ) -> EnvironmentState:
        """Returns the state after one control step of 20 ms.

        Raises:
            ValueError: the action's keys are not ``arm_L`` and ``arm_R``.
        """
        if sorted(action) != sorted(ARMS):
            raise ValueError(f"TwoArm: expected actions for {list(ARMS)}, got {sorted(action)}")
        mechanism = self.advance(state.mechanism, action)
        distances = self.distances(mechanism)
        near = {name: 1.0 / (1.0 + (distances[name] / REACHED_DISTANCE_M) ** 2) for name in ARMS}
        scale = REWARD_PER_S / self.control_rate_hz
        reward = {
            name: scale * near[name] * 0.5 * (1.0 + near[other])
            for name, other in zip(ARMS, reversed(ARMS), strict=True)
        }
        return state.replace(
            obs=self.observe(mechanism),
            reward=reward,
            metrics={"distance_m": distances},
            mechanism=mechanism,
        )

    def advance(
        self, mechanism: dict[str, jax.Array], action: dict[str, Float[AnyArray, "2"]]
    ) -> dict[str, jax.Array]:
        """Returns the mechanism's state after one control step under constant torques."""
        duration_s = 1.0 / self.control_rate_hz
        arms = jp.stack([mechanism[name] for name in ARMS])
        actions = jp.stack([jp.asarray(action[name]) for name in ARMS])
        torques = self.arm.max_torques_nm * jp.clip(actions, -1.0, 1.0)

        def move(arm: jax.Array, torque: jax.Array) -> jax.Array:
            return runge_kutta_4(
                lambda state: self.arm.derivative(state, torque),
                arm,
                duration_s=duration_s,
                substeps=self.substeps,
            )

        arms = jax.vmap(move)(arms, torques)
        arms = arms.at[:, :2].set(wrap_angle(arms[:, :2]))
        phases = mechanism["bar_phases"] + duration_s * mechanism["bar_frequencies"]
        return {
            **mechanism,
            **{name: arms[index] for index, name in enumerate(ARMS)},
            "bar_phases": wrap_angle(phases),
        }

    def observe(self, mechanism: dict[str, jax.Array]) -> dict[str, Any]:
        """Returns what the sensors report."""
        ends, end_velocities = self.bar_ends(mechanism)
        observation: dict[str, Any] = {}
        for name in ARMS:
            angles, speeds = mechanism[name][:2], mechanism[name][2:]
            offset = ends[name] - self.hand(mechanism, name)
            observation[name] = {
                "proprioception": jp.concatenate(
                    [jp.sin(angles), jp.cos(angles), speeds / OBSERVED_SPEED_RAD_S]
                ),
                "target": jp.concatenate([offset, end_velocities[name]]) / OBSERVED_LENGTH_M,
            }
        pose, velocity = _bar_motion(mechanism)
        centre = (pose[:2] - jp.array([0.0, BAR_HEIGHT_M], jp.float32)) / OBSERVED_LENGTH_M
        tilt = jp.stack([jp.sin(pose[2]), jp.cos(pose[2])])
        bar = jp.concatenate([centre, tilt, velocity[:2] / OBSERVED_LENGTH_M])
        return {**observation, "root": {"bar": bar}}

    def hand(self, mechanism: dict[str, jax.Array], name: str) -> Point:
        """Returns where the hand of an arm is, relative to the middle between the shoulders."""
        shoulder = jp.array([SIDE[name] * SHOULDER_OFFSET_M, 0.0], jp.float32)
        return shoulder + self.arm.hand(mechanism[name][:2])

    def bar_ends(
        self, mechanism: dict[str, jax.Array]
    ) -> tuple[dict[str, Point], dict[str, Point]]:
        """Returns where each arm's end of the bar is, in m, and how it moves, in m/s."""
        pose, velocity = _bar_motion(mechanism)
        along = jp.stack([jp.cos(pose[2]), jp.sin(pose[2])]) * BAR_HALF_LENGTH_M
        across = jp.stack([-along[1], along[0]]) * velocity[2]
        ends = {name: pose[:2] + SIDE[name] * along for name in ARMS}
        return ends, {name: velocity[:2] + SIDE[name] * across for name in ARMS}

    def distances(self, mechanism: dict[str, jax.Array]) -> dict[str, Float[jax.Array, ""]]:
        """Returns how far each hand is from its end of the bar, in m."""
        ends, _ = self.bar_ends(mechanism)
        offsets = {name: ends[name] - self.hand(mechanism, name) for name in ARMS}
        return {name: jp.sqrt(jp.sum(offset**2)) for name, offset in offsets.items()}


def _bar_motion(mechanism: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns the bar's centre and tilt ``(3,)`` in m and rad, and their rates."""
    amplitudes = jp.array(BAR_AMPLITUDES, jp.float32)
    rest = jp.array([0.0, BAR_HEIGHT_M, 0.0], jp.float32)
    phases = mechanism["bar_phases"]
    pose = rest + amplitudes * jp.sin(phases)
    return pose, amplitudes * mechanism["bar_frequencies"] * jp.cos(phases)
