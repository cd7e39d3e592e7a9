"""Proximal policy optimization: settings in, trained network out."""

import copy

import jax
from flax import nnx

from nnx_ppo.algorithms.config import TrainConfig, TrainResult
from nnx_ppo.algorithms.gae import gae
from nnx_ppo.algorithms.ppo_loss import ppo_loss
from nnx_ppo.algorithms.ppo_step import new_training_state, ppo_step
from nnx_ppo.algorithms.sharding import compile_on_mesh
from nnx_ppo.algorithms.training_loop import (
    CheckpointFn,
    LogFn,
    Observers,
    VideoFn,
    check_n_envs,
    run_training_loop,
)
from nnx_ppo.algorithms.training_loop import should_run as _should_run
from nnx_ppo.algorithms.types import LoggingLevel, RLEnv, TrainingState
from nnx_ppo.networks.types import StatefulModule

__all__ = [
    "_should_run",
    "default_config",
    "gae",
    "new_training_state",
    "ppo_loss",
    "ppo_step",
    "train_ppo",
]

# The numbers among the arguments stay dynamic: changing one does not compile anew.
STATIC_ARGUMENTS = (0, 2, 3, 7, 8, 9, 10, 12, 13, 14)
compiled_ppo_step = nnx.jit(ppo_step, static_argnums=STATIC_ARGUMENTS)


def default_config() -> TrainConfig:
    """Returns the default settings."""
    return TrainConfig()


def train_ppo(
    env: RLEnv,
    networks: StatefulModule,
    config: TrainConfig | None = None,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    log_fn: LogFn | None = None,
    video_fn: VideoFn | None = None,
    checkpoint_fn: CheckpointFn | None = None,
    eval_env: RLEnv | None = None,
    initial_state: TrainingState | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> TrainResult:
    """Trains a network in an environment.

    Evaluation, videos and checkpoints leave training as it would be without them: the same seed
    gives the same weights, bit for bit on the same machine.

    Args:
        env: The environment of a single robot; training batches it.
        networks: The network to train, updated in place. Its last layer returns a
            ``PPONetworkOutput``, as ``PPOAdapter`` does.
        config: Settings; ``default_config()`` if None. The object is not changed.
        total_steps: Overrides ``config.ppo.total_steps``.
        seed: Overrides ``config.seed``.
        log_fn: Called as ``log_fn(metrics, steps)`` after each iteration. Metrics are arrays that
            may still be in computation; reading one waits for it.
        video_fn: Called with ``VideoData`` if ``config.video`` is enabled and the evaluation
            environment has ``render(trajectory, **render_kwargs)``.
        checkpoint_fn: Called as ``checkpoint_fn(training_state, steps)``, at the start and every
            ``config.checkpoint_every_steps``.
        eval_env: Environment of evaluations and videos; ``env`` if None.
        initial_state: Where to go on from, as ``load_checkpoint`` returns it; its network is the
            one trained, and ``networks`` is then not used.
        mesh: Devices to spread the environments over (docs/devices.md). With those of several
            processes, give each the same arguments; only the first one's callbacks are called.

    Returns:
        The final state, its metrics, and the results of all evaluations.

    Raises:
        TypeError: ``n_minibatches`` does not divide ``n_envs``.
        ValueError: the initial state has another number of environments than the settings, or
            more steps are asked for than can be counted, or ``n_envs`` environments cannot be
            divided evenly among the devices of the mesh.
        AssertionError: the critic's values and the environment's rewards differ in shape.
    """
    config = copy.deepcopy(config) if config is not None else default_config()
    if total_steps is not None:
        config.ppo.total_steps = total_steps
    if seed is not None:
        config.seed = seed
    ppo = config.ppo
    if initial_state is None:
        state = new_training_state(
            env,
            networks,
            ppo.n_envs,
            config.seed,
            ppo.learning_rate,
            ppo.gradient_clipping,
            ppo.weight_decay,
        )
    else:
        state = initial_state
        check_n_envs(state, ppo.n_envs)
    percentiles = tuple(ppo.logging_percentiles) if ppo.logging_percentiles else None

    step = compiled_ppo_step
    if mesh is not None:
        step = compile_on_mesh(ppo_step, mesh, STATIC_ARGUMENTS)

    def iterate(state: TrainingState) -> tuple[TrainingState, dict]:
        return step(
            env,
            state,
            ppo.n_envs,
            ppo.rollout_length,
            ppo.gae_lambda,
            ppo.discounting_factor,
            ppo.clip_range,
            ppo.normalize_advantages,
            ppo.combine_advantages,
            ppo.n_epochs,
            ppo.n_minibatches,
            ppo.critic_loss_weight,
            ppo.logging_level,
            percentiles,
            ppo.bootstrap_truncated,
        )

    result = run_training_loop(
        iterate,
        state,
        total_steps=ppo.total_steps,
        steps_per_iteration=ppo.n_envs * ppo.rollout_length,
        observers=Observers(
            env=eval_env if eval_env is not None else env,
            network_of=lambda state: state.networks,
            seed=config.seed,
            eval=config.eval,
            video=config.video,
            checkpoint_every_steps=config.checkpoint_every_steps,
            log_fn=log_fn,
            video_fn=video_fn,
            checkpoint_fn=checkpoint_fn,
            measure_throughput=LoggingLevel.THROUGHPUT in ppo.logging_level,
            mesh=mesh,
        ),
    )
    return TrainResult(
        training_state=result.state,
        final_metrics=result.metrics,
        eval_history=result.eval_history,
        total_steps=result.steps,
        total_iterations=result.iterations,
    )
