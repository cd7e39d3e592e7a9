"""The loop around iterations: when to evaluate, record videos, write checkpoints and log."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jp
import numpy as np

from nnx_ppo.algorithms.config import EvalConfig, VideoConfig, VideoData
from nnx_ppo.algorithms.random_streams import with_streams_from
from nnx_ppo.algorithms.render_rollout import rollout_for_render
from nnx_ppo.algorithms.rollout import eval_rollout, unstack_trajectory
from nnx_ppo.algorithms.sharding import (
    local_module,
    local_training_state,
    shard_training_state,
)
from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.networks.types import StatefulModule

MAX_STEPS = 2**32 - 1
"""Largest number of environment steps that a training state can count."""

# Folded into the seed's key, so that evaluation shares no key with training from the same seed.
EVALUATION_STREAM = 0x65766C
VIDEO_STREAM = 0x766964

LogFn = Callable[[dict[str, Any], int], Any]
CheckpointFn = Callable[[Any, int], Any]
VideoFn = Callable[[VideoData], Any]
Iterate = Callable[[Any], tuple[Any, dict[str, Any]]]
"""Runs one iteration: takes a training state, returns the next one and metrics."""


@dataclasses.dataclass
class Observers:
    """Who looks at training while it runs, and how often."""

    env: RLEnv
    network_of: Callable[[Any], StatefulModule]
    """Finds the network in a training state."""
    seed: int
    eval: EvalConfig
    video: VideoConfig
    checkpoint_every_steps: int
    log_fn: LogFn | None = None
    video_fn: VideoFn | None = None
    checkpoint_fn: CheckpointFn | None = None
    measure_throughput: bool = False
    mesh: jax.sharding.Mesh | None = None
    """The devices that the training state is spread over."""

    def __post_init__(self) -> None:
        if not self.writes:
            self.log_fn = self.video_fn = None

    @property
    def writes(self) -> bool:
        """Whether callbacks are called here: of processes that train together, in the first."""
        return self.mesh is None or jax.process_index() == 0

    def checkpoint(self, state: Any, steps: int, previous: int) -> None:
        """Saves a checkpoint if it is due; processes that train together all take part."""
        every = self.checkpoint_every_steps
        if self.checkpoint_fn is None or not should_run(steps, previous, every):
            return
        if self.mesh is not None:
            state = local_training_state(state)
        if self.writes:
            self.checkpoint_fn(state, steps)

    def who_watches_videos(self) -> VideoFn | None:
        """Returns the ``video_fn`` if videos are to be recorded and the environment can render.

        Warns if it cannot.
        """
        if not self.video.enabled or self.video_fn is None:
            return None
        if not hasattr(self.env, "render"):
            warnings.warn(
                f"no videos: the evaluation environment {type(self.env).__name__} has no render()",
                stacklevel=2,
            )
            return None
        return self.video_fn


@dataclasses.dataclass
class LoopResult:
    """What the loop ends with."""

    state: Any
    metrics: Mapping[str, Any]
    eval_history: list[dict[str, Any]]
    steps: int
    iterations: int


def should_run(steps: int, last: int, every: int) -> bool:
    """Whether a multiple of ``every`` lies in ``(last, steps]``; never if ``every`` is not > 0."""
    return every > 0 and steps // every > last // every


def check_n_envs(state: Any, n_envs: int) -> None:
    """Refuses a training state that holds another number of environments than the settings say.

    Raises:
        ValueError: it does.
    """
    given = state.env_states.done.shape[0]
    if given != n_envs:
        raise ValueError(
            f"initial_state holds {given} environments but n_envs is {n_envs} in the settings; "
            f"set n_envs={given}, or start from a new state"
        )


def run_training_loop(
    iterate: Iterate,
    state: Any,
    *,
    total_steps: int,
    steps_per_iteration: int,
    observers: Observers,
) -> LoopResult:
    """Iterates until ``total_steps`` environment steps are taken.

    Between observations the loop does not wait for the device: metrics reach ``log_fn`` as arrays
    that may still be in computation, and reading their numbers waits for them.

    Args:
        iterate: Runs one iteration.
        state: A training state; the steps it has taken count.
        total_steps: Steps after which no further iteration starts.
        steps_per_iteration: Steps that each iteration takes.
        observers: Who looks on.

    Raises:
        ValueError: more steps than the state can count.
    """
    if total_steps + steps_per_iteration > MAX_STEPS:
        raise ValueError(
            f"total_steps={total_steps} is too many: training counts at most {MAX_STEPS} "
            f"environment steps, those of the last iteration ({steps_per_iteration}) included"
        )
    steps = int(state.steps_taken)
    # States from elsewhere may count in a type that loses steps, such as float32.
    state = state.replace(steps_taken=jp.asarray(steps, jp.uint32))
    if observers.mesh is not None:
        state = shard_training_state(state, observers.mesh)
    iterations = 0
    eval_history: list[dict[str, Any]] = []

    video_fn = observers.who_watches_videos()

    metrics: dict[str, Any] = {}
    if observers.eval.enabled:
        metrics |= _evaluate(observers, state, steps, eval_history)
    if video_fn is not None:
        metrics |= _record_video(observers, video_fn, state, steps, iterations)
    observers.checkpoint(state, steps, previous=-observers.checkpoint_every_steps)
    if observers.log_fn is not None and metrics:
        observers.log_fn(metrics, steps)

    while steps < total_steps:
        start = time.perf_counter()
        state, metrics = iterate(state)
        previous, steps = steps, steps + steps_per_iteration
        iterations += 1
        if observers.measure_throughput:
            _add_throughput(metrics, "train", steps_per_iteration, start, (state, metrics))

        if observers.eval.enabled and should_run(steps, previous, observers.eval.every_steps):
            metrics |= _evaluate(observers, state, steps, eval_history)
        if video_fn is not None and should_run(steps, previous, observers.video.every_steps):
            metrics |= _record_video(observers, video_fn, state, steps, iterations)
        observers.checkpoint(state, steps, previous)
        if observers.log_fn is not None:
            observers.log_fn(metrics, steps)

    return LoopResult(state, metrics, eval_history, steps, iterations)


def _evaluate(
    observers: Observers, state: Any, steps: int, history: list[dict[str, Any]]
) -> dict[str, Any]:
    start = time.perf_counter()
    config = observers.eval
    key = jax.random.fold_in(jax.random.key(observers.seed), EVALUATION_STREAM)
    metrics = dict(
        eval_rollout(
            observers.env,
            _eval_copy(observers, state, key),
            config.n_envs,
            config.max_episode_length,
            key,
            config.logging_percentiles,
            config.logging_level,
        )
    )
    if observers.measure_throughput:
        n_steps = config.n_envs * config.max_episode_length
        _add_throughput(metrics, "eval", n_steps, start, metrics)
    history.append({"step": steps, **metrics})
    return metrics


def _record_video(
    observers: Observers, video_fn: VideoFn, state: Any, steps: int, iterations: int
) -> dict[str, Any]:
    start = time.perf_counter()
    config, env = observers.video, observers.env
    key = jax.random.fold_in(jax.random.key(observers.seed), VIDEO_STREAM)
    key = jax.random.fold_in(key, iterations)
    rollout = rollout_for_render(env, _eval_copy(observers, state, key), config.episode_length, key)
    trajectory = unstack_trajectory(rollout.stacked, rollout.final, config.episode_length)
    frames = env.render(trajectory, **config.render_kwargs)  # pyright: ignore[reportAttributeAccessIssue]
    data = VideoData(
        frames=np.asarray(frames),
        step=steps,
        episode_reward=float(rollout.episode_reward),
        episode_length=int(rollout.episode_length),
    )
    video_fn(data)
    metrics: dict[str, Any] = {}
    if observers.measure_throughput:
        _add_throughput(metrics, "video", config.episode_length, start, ())
    return metrics


def _eval_copy(observers: Observers, state: Any, key: jax.Array) -> StatefulModule:
    """Copies the network and switches the copy to eval mode.

    The network in training keeps its mode and random streams, also if evaluation fails.
    """
    networks = observers.network_of(state)
    if observers.mesh is not None:
        # Each process evaluates for itself on one device, and all get the same.
        networks = local_module(networks)
    copy = with_streams_from(networks, key)
    copy.eval()
    return copy


def _add_throughput(
    metrics: dict[str, Any], what: str, n_steps: int, start: float, results: Any
) -> None:
    jax.block_until_ready(jax.tree.leaves(results))
    metrics[f"throughput/{what}_sps"] = n_steps / (time.perf_counter() - start)
