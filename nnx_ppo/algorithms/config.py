"""Settings of training runs and what the runs return."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnx_ppo.algorithms.types import DistillationState, LoggingLevel, TrainingState

Number = float | int

DEFAULT_EVAL_PERCENTILES = (0, 25, 50, 75, 100)


@dataclasses.dataclass
class PPOConfig:
    """Settings of the PPO update and of the rollouts it learns from."""

    n_envs: int = 256
    """Environments stepped in parallel."""
    rollout_length: int = 20
    """Steps per environment in one iteration."""
    total_steps: int = 512_000
    """Environment steps over all environments after which training ends."""
    gae_lambda: Number = 0.95
    """Decay of generalized advantage estimation, in [0, 1]."""
    discounting_factor: Number = 0.99
    """Discount of future rewards per step, in [0, 1]."""
    clip_range: Number = 0.2
    """Largest relative change of an action's probability that the actor's loss rewards."""
    learning_rate: Number = 1e-4
    """Step size of Adam."""
    normalize_advantages: bool = True
    """Whether advantages are standardized in each minibatch."""
    combine_advantages: bool = False
    """Whether the advantages of several rewards are added and given to every action head."""
    n_epochs: int = 4
    """Passes over each rollout."""
    n_minibatches: int = 4
    """Updates per pass; must divide ``n_envs``."""
    critic_loss_weight: Number = 1.0
    """Weight of the critic's loss beside the actor's."""
    gradient_clipping: Number | None = None
    """Largest global norm of a gradient, or None for no limit."""
    weight_decay: Number | bool | None = None
    """None for Adam, True for AdamW with its default decay, or AdamW's decay."""
    logging_level: LoggingLevel = LoggingLevel.LOSSES
    """What each iteration measures."""
    logging_percentiles: Sequence[Number] | None = None
    """Percentiles to log in place of mean and standard deviation."""
    bootstrap_truncated: bool = False
    """Whether a truncated episode is continued by the critic's value of its last observation.

    Otherwise the truncated step gets no advantage. Costs one more network call per replayed step.
    """


@dataclasses.dataclass
class EvalConfig:
    """Settings of the evaluations during training."""

    enabled: bool = True
    """Whether training evaluates at all."""
    every_steps: int = 50_000
    """Environment steps between evaluations; 0 or less evaluates at the start only."""
    n_envs: int = 64
    """Episodes per evaluation."""
    max_episode_length: int = 1000
    """Steps after which an episode is cut."""
    logging_level: LoggingLevel = LoggingLevel.NONE
    """NETWORK_METRICS and ENV_METRICS add averages of what network and environment report."""
    logging_percentiles: Sequence[Number] | None = DEFAULT_EVAL_PERCENTILES
    """Percentiles over episodes to log."""


@dataclasses.dataclass
class VideoConfig:
    """Settings of the videos recorded during training."""

    enabled: bool = False
    """Whether training records videos (it also needs a ``video_fn``)."""
    every_steps: int = 200_000
    """Environment steps between videos."""
    episode_length: int = 1000
    """Steps per video."""
    render_kwargs: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"height": 480, "width": 640}
    )
    """Passed on to the environment's ``render``."""


@dataclasses.dataclass
class TrainConfig:
    """Settings of ``train_ppo``."""

    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    video: VideoConfig = dataclasses.field(default_factory=VideoConfig)
    seed: int = 17
    """Seed of environments, shuffling and evaluation (the network has its own)."""
    checkpoint_every_steps: int = 500_000
    """Environment steps between checkpoints; 0 or less writes none."""


@dataclasses.dataclass
class DistillationConfig:
    """Settings of the distillation update; fields as in ``PPOConfig``."""

    n_envs: int = 256
    rollout_length: int = 20
    total_steps: int = 512_000
    learning_rate: Number = 1e-4
    n_epochs: int = 4
    n_minibatches: int = 4
    gradient_clipping: Number | None = None
    weight_decay: Number | bool | None = None
    logging_level: LoggingLevel = LoggingLevel.LOSSES
    logging_percentiles: Sequence[Number] | None = None


@dataclasses.dataclass
class DistillationTrainConfig:
    """Settings of ``train_distillation``; fields as in ``TrainConfig``."""

    distillation: DistillationConfig = dataclasses.field(default_factory=DistillationConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    video: VideoConfig = dataclasses.field(default_factory=VideoConfig)
    seed: int = 17
    checkpoint_every_steps: int = 500_000


@dataclasses.dataclass
class VideoData:
    """One rendered episode, as ``video_fn`` receives it."""

    frames: np.ndarray
    """Frames ``[time, height, width, channels]``, uint8."""
    step: int
    """Environment steps taken when it was recorded."""
    episode_reward: float
    """Sum of rewards up to the end of the first episode."""
    episode_length: int
    """Steps up to the end of the first episode."""


@dataclasses.dataclass
class TrainResult:
    """What ``train_ppo`` returns."""

    training_state: TrainingState
    """State after the last iteration; holds the trained networks."""
    final_metrics: Mapping[str, Any]
    """Metrics of the last iteration."""
    eval_history: list[dict[str, Any]]
    """Metrics of every evaluation, with the environment steps under ``"step"``."""
    total_steps: int
    """Environment steps taken."""
    total_iterations: int
    """Iterations run by this call."""


@dataclasses.dataclass
class DistillationTrainResult:
    """What ``train_distillation`` returns; fields as in ``TrainResult``."""

    training_state: DistillationState
    final_metrics: Mapping[str, Any]
    eval_history: list[dict[str, Any]]
    total_steps: int
    total_iterations: int
