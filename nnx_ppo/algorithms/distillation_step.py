"""One iteration of distillation: the student acts, and learns what the teacher would have done."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Float, Key

from nnx_ppo.algorithms.env_reset import reset_finished
from nnx_ppo.algorithms.metrics import compute_metrics, log_weight_stats
from nnx_ppo.algorithms.optimizers import make_gradient_transformation
from nnx_ppo.algorithms.ppo_step import (
    add_steps,
    global_norm,
    scan_updates,
    shuffled_minibatches,
)
from nnx_ppo.algorithms.replay import replay_rollout
from nnx_ppo.algorithms.rollout import truncation_of
from nnx_ppo.algorithms.sharding import shard_environments
from nnx_ppo.algorithms.trees import strong_types, tree_sum, tree_where
from nnx_ppo.algorithms.types import (
    DistillationState,
    DistillationTransition,
    EnvState,
    LoggingLevel,
    RLEnv,
)
from nnx_ppo.networks.types import ModuleState, StatefulModule


def new_distillation_state(
    env: RLEnv,
    teacher: StatefulModule,
    student: StatefulModule,
    n_envs: int,
    seed: ArrayLike,
    learning_rate: float | int = 1e-4,
    gradient_clipping: float | int | None = None,
    weight_decay: float | int | bool | None = None,
) -> DistillationState:
    """Creates environments, both networks' carries, and an optimizer for the student.

    Args:
        env: The environment of a single robot.
        teacher: The network to learn from.
        student: The network to train; training updates this very object.
        n_envs: Environments stepped in parallel.
        seed: Seed of the environments and of everything training draws itself.
        learning_rate: Step size of Adam.
        gradient_clipping: Largest global norm of a gradient, or None.
        weight_decay: None for Adam, True for AdamW with its default decay, or AdamW's decay.
    """
    key, training_key = jax.random.split(jax.random.key(seed))
    optimizer = make_gradient_transformation(learning_rate, gradient_clipping, weight_decay)
    return DistillationState(
        student=student,
        student_states=strong_types(student.initialize_state(n_envs)),
        teacher_states=strong_types(teacher.initialize_state(n_envs)),
        env_states=strong_types(jax.vmap(env.reset)(jax.random.split(key, n_envs))),
        optimizer=nnx.Optimizer(student, optimizer, wrt=nnx.Param),
        rng_key=training_key,
        steps_taken=jp.zeros((), jp.uint32),
    )


def distillation_single_transition(
    env: RLEnv,
    teacher: StatefulModule,
    student: StatefulModule,
    carry: tuple[ModuleState, ModuleState, EnvState],
    keys: Key[jax.Array, " batch"],
) -> tuple[tuple[ModuleState, ModuleState, EnvState], DistillationTransition]:
    """Takes one step with the student's actions, and asks the teacher for its own.

    Args:
        env: The environment of a single robot.
        teacher: The network to learn from, called after the student on the same observation.
        student: The acting network.
        carry: The student's carry, the teacher's carry, the environment states.
        keys: One PRNG key per environment, used where an episode ended.

    Returns:
        The carry for the next step, all three reset where an episode ended, and the transition.
    """
    student_state, teacher_state, env_state = carry
    out = student(student_state, env_state.obs, None)
    teacher_out = teacher(teacher_state, env_state.obs, None)
    next_env_state = jax.vmap(env.step)(env_state, out.output.actions)
    done = jp.asarray(next_env_state.done).astype(bool)
    transition = DistillationTransition(
        obs=env_state.obs,
        student_output=out.output,
        rewards=next_env_state.reward,
        done=done,
        truncated=truncation_of(next_env_state.info, done),
        next_obs=next_env_state.obs,
        metrics={"env": next_env_state.metrics, "student": out.metrics},
        student_rollout_extras=out.rollout_extras,
        teacher_rollout_extras=teacher_out.rollout_extras,
    )
    student_state = tree_where(done, student.reset_state(out.next_state), out.next_state)
    teacher_state = tree_where(
        done, teacher.reset_state(teacher_out.next_state), teacher_out.next_state
    )
    env_state = reset_finished(env, next_env_state, done, keys)
    return (student_state, teacher_state, env_state), transition


def distillation_unroll_env(
    env: RLEnv,
    env_state: EnvState,
    teacher: StatefulModule,
    student: StatefulModule,
    student_state: ModuleState,
    teacher_state: ModuleState,
    unroll_length: int,
    rng_key_for_env_reset: Key[jax.Array, ""],
) -> tuple[ModuleState, ModuleState, EnvState, DistillationTransition]:
    """Steps a batch of environments with the student, the teacher looking on.

    Returns:
        The student's carry, the teacher's carry and the environment states after the last step,
        and the transitions, leaves ``[unroll_length, batch, ...]``.
    """
    batch_size = env_state.done.shape[0]
    keys = jax.random.split(rng_key_for_env_reset, (unroll_length, batch_size))
    graphdef, variables = nnx.split((teacher, student))

    def step(carry: Any, keys: Any) -> Any:
        variables, states = carry
        teacher, student = nnx.merge(graphdef, variables, copy=True)
        states, transition = distillation_single_transition(env, teacher, student, states, keys)
        states, transition = shard_environments((states, transition), batch_size)
        return (nnx.state((teacher, student)), states), transition

    (variables, states), rollout = jax.lax.scan(
        step, (variables, (student_state, teacher_state, env_state)), keys
    )
    nnx.update((teacher, student), variables)
    return *states, rollout


def distillation_loss(
    student: StatefulModule,
    student_state: ModuleState,
    rollout_data: DistillationTransition,
    logging_level: LoggingLevel,
) -> tuple[Float[jax.Array, ""], dict[str, Any]]:
    """Computes how unlikely the teacher's actions are to the student.

    The student replays the rollout with what the teacher emitted, in which the place of each
    sampler holds the teacher's action; the two networks need the same arrangement of layers that
    emit something.

    Args:
        student: The network in training.
        student_state: Its carry at the start of the rollout, leaves ``[batch, ...]``.
        rollout_data: The rollout, leaves ``[time, batch, ...]``.
        logging_level: LOSSES reports the two parts of the loss.

    Returns:
        The negative log-likelihood, averaged over steps and added over action heads, plus the
        student's regularization loss; and what was measured.
    """
    rollout = jax.tree.map(jax.lax.stop_gradient, rollout_data)
    replay = replay_rollout(
        student, student_state, rollout.obs, rollout.teacher_rollout_extras, rollout.done
    )
    unlikelihood = tree_sum(jax.tree.map(lambda x: -jp.mean(x), replay.output.loglikelihoods))
    metrics: dict[str, Any] = {}
    if LoggingLevel.LOSSES in logging_level:
        metrics["losses/distillation_nll"] = unlikelihood
        metrics["losses/regularization"] = replay.regularization
    return unlikelihood + replay.regularization, metrics


def distillation_step(
    env: RLEnv,
    teacher: StatefulModule,
    distillation_state: DistillationState,
    n_envs: int,
    rollout_length: int,
    n_epochs: int,
    n_minibatches: int,
    logging_level: LoggingLevel = LoggingLevel.LOSSES,
    logging_percentiles: Sequence[int | float] | None = None,
) -> tuple[DistillationState, dict[str, Any]]:
    """Collects a rollout with the student, trains it on the teacher's actions, and reports.

    Meant to run under ``nnx.jit`` with everything but teacher and state static. The teacher acts
    in the mode it is in; switch it to eval mode to imitate its means.

    Args:
        env: The environment of a single robot.
        teacher: The network to learn from; its weights and statistics stay.
        distillation_state: Where training stands. Student and optimizer are updated in place.
        n_envs: Environments in the state.
        rollout_length: Steps per environment.
        n_epochs: Passes over the rollout.
        n_minibatches: Updates per pass, each on other environments and all their steps.
        logging_level: What to measure.
        logging_percentiles: Percentiles to report, or None for mean and standard deviation.

    Returns:
        The state for the next iteration, and scalars by name.

    Raises:
        TypeError: ``n_minibatches`` does not divide ``n_envs``.
    """
    state = distillation_state
    student, optimizer = state.student, state.optimizer
    reset_key, shuffle_key, new_key = jax.random.split(state.rng_key, 3)
    student_states, teacher_states, env_states, rollout = distillation_unroll_env(
        env,
        state.env_states,
        teacher,
        student,
        state.student_states,
        state.teacher_states,
        rollout_length,
        reset_key,
    )
    # What the updates never read is not gathered for them.
    learning_data = rollout.replace(metrics={}, next_obs=(), student_rollout_extras=None)

    def update(student: StatefulModule, optimizer: nnx.Optimizer, envs: jax.Array) -> Any:
        minibatch = jax.tree.map(lambda leaf: leaf[:, envs], learning_data)
        minibatch = shard_environments(minibatch, envs.shape[0], axis=1)
        states = jax.tree.map(lambda leaf: leaf[envs], state.student_states)
        states = shard_environments(states, envs.shape[0])
        gradients, metrics = nnx.grad(distillation_loss, has_aux=True)(
            student, states, minibatch, logging_level
        )
        if LoggingLevel.GRAD_NORM in logging_level:
            metrics["grad_norm"] = global_norm(gradients)
        optimizer.update(student, gradients)
        return metrics

    minibatches = shuffled_minibatches(shuffle_key, n_envs, n_epochs, n_minibatches)
    loss_metrics = scan_updates(update, student, optimizer, minibatches)

    metrics = compute_metrics(loss_metrics, rollout, logging_level, logging_percentiles)
    student.update_statistics(rollout.student_rollout_extras)
    metrics["total_steps"] = add_steps(state.steps_taken, rollout_length * n_envs)
    if LoggingLevel.WEIGHTS in logging_level:
        log_weight_stats(metrics, student, logging_percentiles)
    new_state = state.replace(
        student_states=student_states,
        teacher_states=teacher_states,
        env_states=env_states,
        rng_key=new_key,
        steps_taken=metrics["total_steps"],
    )
    return new_state, metrics
