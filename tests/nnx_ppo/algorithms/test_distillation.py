import jax
import numpy as np
import pytest
from flax import nnx
from training_cases import (
    PointEnv,
    TwoArmEnv,
    make_lstm_networks,
    make_point_networks,
    make_two_arm_networks,
)

from nnx_ppo.algorithms.checkpointing import (
    latest_checkpoint,
    load_checkpoint,
    load_network,
    make_checkpoint_fn,
)
from nnx_ppo.algorithms.config import (
    DistillationConfig,
    DistillationTrainConfig,
    EvalConfig,
)
from nnx_ppo.algorithms.distillation import (
    default_distillation_config,
    distillation_step,
    distillation_unroll_env,
    new_distillation_state,
    train_distillation,
)
from nnx_ppo.algorithms.types import DistillationState, LoggingLevel
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")
ENV = EpisodeWrapper(PointEnv(), 10)
JITTED = nnx.jit(distillation_step, static_argnums=(0, 3, 4, 5, 6, 7, 8))


def _weights(module):
    return [np.array(leaf) for leaf in jax.tree.leaves(nnx.state(module, nnx.Param))]


def test_the_student_learns_the_teachers_actions_and_the_teacher_stays():
    teacher, student = make_point_networks(0), make_point_networks(1)
    before = _weights(teacher)
    config = DistillationTrainConfig(
        distillation=DistillationConfig(
            n_envs=8, rollout_length=10, n_epochs=4, n_minibatches=2, learning_rate=3e-3
        ),
        eval=EvalConfig(every_steps=2_000, n_envs=4, max_episode_length=10),
    )
    losses = []
    result = train_distillation(
        ENV,
        teacher,
        student,
        config,
        total_steps=4_000,
        log_fn=lambda metrics, steps: losses.append(metrics.get("losses/distillation_nll/mean")),
    )
    assert result.total_steps == 4_000
    assert int(result.training_state.steps_taken) == 4_000
    assert [entry["step"] for entry in result.eval_history] == [0, 2_000, 4_000]
    assert float(losses[-1]) < float(losses[1]) - 0.5
    for a, b in zip(before, _weights(teacher), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not teacher.layers[1].action.layers[-1].deterministic
    assert float(student.layers[0].counter[...]) == 4_000.0
    assert float(teacher.layers[0].counter[...]) == 0.0


def test_everything_measured_is_finite_with_minibatches_of_one_environment():
    teacher, student = make_point_networks(0), make_point_networks(1)
    teacher.eval()
    state = new_distillation_state(ENV, teacher, student, 4, 0)
    level = LoggingLevel.ALL | LoggingLevel.ROLLOUT_OBS
    state, metrics = JITTED(ENV, teacher, state, 4, 6, 1, 4, level, None)
    assert int(state.steps_taken) == 24
    for name, value in metrics.items():
        assert np.isfinite(np.asarray(value, np.float64)).all(), name
    for name in (
        "losses/distillation_nll", "losses/regularization", "rollout_batch/reward",
        "rollout_batch/obs", "env/distance", "student/1/action/2/mu", "grad_norm", "weights",
    ):  # fmt: skip
        assert f"{name}/mean" in metrics
    assert not any(name.startswith(("net/", "loglikelihood")) for name in metrics)


def test_several_heads_are_distilled_together():
    env = TwoArmEnv()
    teacher, student = make_two_arm_networks(0), make_two_arm_networks(1)
    teacher.eval()
    state = new_distillation_state(env, teacher, student, 4, 0)
    state, metrics = JITTED(env, teacher, state, 4, 10, 1, 2, LoggingLevel.LOSSES, None)
    assert np.isfinite(float(metrics["losses/distillation_nll/mean"]))


def test_both_carries_are_reset_with_the_environment():
    teacher, student = make_lstm_networks(0), make_lstm_networks(1)
    teacher.eval()
    env = EpisodeWrapper(PointEnv(), 3, random_start=False)
    state = new_distillation_state(env, teacher, student, 2, 0)
    student_state, teacher_state, env_state, rollout = distillation_unroll_env(
        env,
        state.env_states,
        teacher,
        student,
        state.student_states,
        state.teacher_states,
        3,
        jax.random.key(0),
    )
    assert bool(rollout.done[-1].all())
    for carry in (student_state, teacher_state):
        for leaf in jax.tree.leaves(carry):
            np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
    np.testing.assert_array_equal(env_state.info["step_counter"], [0, 0])


def test_a_distillation_can_be_saved_and_gone_on_from(tmp_path):
    teacher, student = make_point_networks(0), make_point_networks(1)
    state = new_distillation_state(ENV, teacher, student, 4, 0)
    make_checkpoint_fn(tmp_path)(state, 3)
    other = make_point_networks(5)
    optimizer = new_distillation_state(ENV, teacher, other, 4, 1).optimizer
    path = latest_checkpoint(tmp_path)
    assert path is not None
    restored = load_checkpoint(path, other, optimizer, env=ENV)["training_state"]
    assert isinstance(restored, DistillationState)
    assert restored.student is other
    for a, b in zip(_weights(student), _weights(other), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(restored.env_states.obs, state.env_states.obs)
    assert jax.tree.structure(restored.teacher_states) == jax.tree.structure(state.teacher_states)
    assert load_network(path, make_point_networks(6)) is not None


def test_defaults_are_those_documented():
    config = default_distillation_config()
    assert config.distillation.n_envs == 256
    assert config.checkpoint_every_steps == 500_000
    assert config.seed == 17
