"""Training a student network to act as a teacher does, in states that the student reaches."""

import copy
from typing import Any

import jax
from flax import nnx

from nnx_ppo.algorithms.config import DistillationTrainConfig, DistillationTrainResult
from nnx_ppo.algorithms.distillation_step import (
    distillation_loss,
    distillation_single_transition,
    distillation_step,
    distillation_unroll_env,
    new_distillation_state,
)
from nnx_ppo.algorithms.sharding import (
    compile_on_mesh,
    replicate_module,
)
from nnx_ppo.algorithms.training_loop import (
    CheckpointFn,
    LogFn,
    Observers,
    VideoFn,
    check_n_envs,
    run_training_loop,
)
from nnx_ppo.algorithms.types import DistillationState, LoggingLevel, RLEnv
from nnx_ppo.networks.types import StatefulModule

__all__ = [
    "default_distillation_config",
    "distillation_loss",
    "distillation_single_transition",
    "distillation_step",
    "distillation_unroll_env",
    "new_distillation_state",
    "train_distillation",
]

STATIC_ARGUMENTS = (0, 3, 4, 5, 6, 7, 8)
compiled_distillation_step = nnx.jit(distillation_step, static_argnums=STATIC_ARGUMENTS)


def default_distillation_config() -> DistillationTrainConfig:
    """Returns the default settings."""
    return DistillationTrainConfig()


def train_distillation(
    env: RLEnv,
    teacher: StatefulModule,
    student: StatefulModule,
    config: DistillationTrainConfig | None = None,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    log_fn: LogFn | None = None,
    video_fn: VideoFn | None = None,
    checkpoint_fn: CheckpointFn | None = None,
    eval_env: RLEnv | None = None,
    initial_state: DistillationState | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> DistillationTrainResult:
    """Trains a student to act as a teacher does.

    The student acts, so it learns in the states it reaches itself (S. Ross et al., "A reduction of
    imitation learning and structured prediction to no-regret online learning", 2011).

    Args:
        env: The environment of a single robot; training batches it.
        teacher: The network to learn from. A copy of it in eval mode is asked; it stays as it is.
        student: The network to train, updated in place, with the teacher's arrangement of layers.
        config: Settings; ``default_distillation_config()`` if None. The object is not changed.
        total_steps: Overrides ``config.distillation.total_steps``.
        seed: Overrides ``config.seed``.
        log_fn: As for ``train_ppo``.
        video_fn: As for ``train_ppo``.
        checkpoint_fn: As for ``train_ppo``.
        eval_env: Environment of the student's evaluations and videos; ``env`` if None.
        initial_state: Where to go on from; its student is the one trained.
        mesh: As for ``train_ppo``.

    Returns:
        The final state, its metrics, and the results of all evaluations.

    Raises:
        TypeError: ``n_minibatches`` does not divide ``n_envs``.
        ValueError: the initial state has another number of environments than the settings, or
            more steps are asked for than can be counted, or ``n_envs`` environments cannot be
            divided evenly among the devices of the mesh.
    """
    config = copy.deepcopy(config) if config is not None else default_distillation_config()
    settings = config.distillation
    if total_steps is not None:
        settings.total_steps = total_steps
    if seed is not None:
        config.seed = seed
    teacher = nnx.clone(teacher)
    teacher.eval()
    if initial_state is None:
        state = new_distillation_state(
            env,
            teacher,
            student,
            settings.n_envs,
            config.seed,
            settings.learning_rate,
            settings.gradient_clipping,
            settings.weight_decay,
        )
    else:
        state = initial_state
        check_n_envs(state, settings.n_envs)
    percentiles = tuple(settings.logging_percentiles) if settings.logging_percentiles else None

    step = compiled_distillation_step
    if mesh is not None:
        replicate_module(teacher, mesh)
        step = compile_on_mesh(distillation_step, mesh, STATIC_ARGUMENTS)

    def iterate(state: DistillationState) -> tuple[DistillationState, dict[str, Any]]:
        return step(
            env,
            teacher,
            state,
            settings.n_envs,
            settings.rollout_length,
            settings.n_epochs,
            settings.n_minibatches,
            settings.logging_level,
            percentiles,
        )

    result = run_training_loop(
        iterate,
        state,
        total_steps=settings.total_steps,
        steps_per_iteration=settings.n_envs * settings.rollout_length,
        observers=Observers(
            env=eval_env if eval_env is not None else env,
            network_of=lambda state: state.student,
            seed=config.seed,
            eval=config.eval,
            video=config.video,
            checkpoint_every_steps=config.checkpoint_every_steps,
            log_fn=log_fn,
            video_fn=video_fn,
            checkpoint_fn=checkpoint_fn,
            measure_throughput=LoggingLevel.THROUGHPUT in settings.logging_level,
            mesh=mesh,
        ),
    )
    return DistillationTrainResult(
        training_state=result.state,
        final_metrics=result.metrics,
        eval_history=result.eval_history,
        total_steps=result.steps,
        total_iterations=result.iterations,
    )
