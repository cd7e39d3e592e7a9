import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from training_cases import CountingEnv, CountingNetwork, PointEnv, make_point_networks

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, VideoConfig, VideoData
from nnx_ppo.algorithms.ppo import _should_run, default_config, new_training_state, train_ppo
from nnx_ppo.algorithms.types import LoggingLevel, TrainingState
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

# One object each for all tests: a compiled step belongs to its environment.
ENV = EpisodeWrapper(PointEnv(), 20)
EVAL_ENV = EpisodeWrapper(PointEnv(), 20, random_start=False)
STEPS = 4 * 5  # environment steps in one iteration of the small settings


def _config(**changes):
    """Small settings; nothing is evaluated."""
    return TrainConfig(
        ppo=PPOConfig(n_envs=4, rollout_length=5, n_epochs=1, n_minibatches=2, learning_rate=1e-2),
        eval=EvalConfig(enabled=False, n_envs=4, max_episode_length=20),
        **changes,
    )


def _weights(networks):
    return [np.array(leaf) for leaf in jax.tree.leaves(nnx.state(networks, nnx.Param))]


def _assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "steps, last, every, expected",
    [
        (100, 0, 50, True),
        (49, 0, 50, False),
        (50, 49, 50, True),
        (99, 50, 50, False),
        (0, -50, 50, True),
        (7, -50, 50, True),
        (100, 0, 0, False),
        (100, 0, -1, False),
    ],
)
def test_something_runs_when_a_multiple_of_its_interval_was_passed(steps, last, every, expected):
    assert _should_run(steps, last, every) is expected


def test_defaults_are_those_documented():
    config = default_config()
    assert config.checkpoint_every_steps == 500_000
    assert config.seed == 17
    assert config.eval.logging_percentiles == (0, 25, 50, 75, 100)
    assert config.video.render_kwargs == {"height": 480, "width": 640}
    config.ppo.n_envs = 3  # settings are mutable, and not shared
    assert default_config().ppo.n_envs == 256


def test_a_multilayer_perceptron_learns_to_stop_at_the_origin():
    env, eval_env = (
        EpisodeWrapper(PointEnv(), 50),
        EpisodeWrapper(PointEnv(), 50, random_start=False),
    )
    networks = make_point_networks(hidden=(32,), entropy_weight=1e-3)
    config = TrainConfig(
        ppo=PPOConfig(
            n_envs=64,
            rollout_length=16,
            total_steps=100_000,
            learning_rate=3e-3,
            discounting_factor=0.97,
        ),
        eval=EvalConfig(every_steps=100_000, max_episode_length=50, logging_percentiles=None),
    )
    result = train_ppo(env, networks, config, eval_env=eval_env)
    returns = [float(m["eval/episode_reward/mean"]) for m in result.eval_history]
    assert len(returns) == 2
    assert returns[0] < 20.0
    assert returns[1] > 45.0  # of 50 at most


@pytest.mark.usefixtures("quick_compile")
class TestLoop:
    """Behaviour of the loop, with the small settings."""

    def test_it_counts_steps_and_iterations_exactly(self):
        networks = make_point_networks()
        logged = []
        result = train_ppo(
            ENV,
            networks,
            _config(),
            total_steps=3 * STEPS - 1,
            log_fn=lambda metrics, steps: logged.append((steps, int(metrics["total_steps"]))),
        )
        assert (result.total_steps, result.total_iterations) == (3 * STEPS, 3)
        assert int(result.training_state.steps_taken) == 3 * STEPS
        assert logged == [(STEPS, STEPS), (2 * STEPS, 2 * STEPS), (3 * STEPS, 3 * STEPS)]
        assert result.training_state.networks is networks
        assert float(networks.layers[0].counter[...]) == 3 * STEPS
        assert np.isfinite(float(result.final_metrics["losses/actor/mean"]))
        assert result.eval_history == []

    def test_the_same_seed_gives_the_same_weights_evaluated_or_not(self):
        weights = []
        for enabled in (False, True, False):
            networks = make_point_networks(seed=2)
            config = _config()
            config.eval.enabled = enabled
            config.eval.every_steps = STEPS
            result = train_ppo(
                ENV, networks, config, total_steps=3 * STEPS, seed=5, eval_env=EVAL_ENV
            )
            assert len(result.eval_history) == (4 if enabled else 0)
            weights.append(_weights(networks))
        _assert_equal(weights[0], weights[1])
        _assert_equal(weights[0], weights[2])
        other = make_point_networks(seed=2)
        train_ppo(ENV, other, _config(), total_steps=3 * STEPS, seed=6)
        assert any(np.any(a != b) for a, b in zip(weights[0], _weights(other), strict=True))

    def test_overrides_leave_the_given_settings_alone(self):
        config = _config(seed=3)
        train_ppo(ENV, make_point_networks(), config, total_steps=STEPS, seed=5)
        assert config.ppo.total_steps == 512_000
        assert config.seed == 3

    def test_evaluations_reach_metrics_and_history(self):
        config = _config()
        config.eval.enabled = True
        config.eval.every_steps = 2 * STEPS
        logged = {}
        result = train_ppo(
            ENV,
            make_point_networks(),
            config,
            total_steps=4 * STEPS,
            eval_env=EVAL_ENV,
            log_fn=lambda metrics, steps: logged.update({steps: set(metrics)}),
        )
        assert [entry["step"] for entry in result.eval_history] == [0, 2 * STEPS, 4 * STEPS]
        assert "eval/episode_reward/mean" in logged[0]
        assert "losses/actor/mean" not in logged[0]
        assert "eval/lifespan/p50" in logged[2 * STEPS]
        assert not any(name.startswith("eval") for name in logged[STEPS])
        # The evaluation environment's episodes are not shortened by a random start.
        assert float(result.eval_history[0]["eval/lifespan/p100"]) == 20.0

    def test_checkpoints_come_at_the_start_and_every_interval(self):
        for every, expected in ((10**9, [0]), (STEPS, [0, STEPS, 2 * STEPS]), (0, [])):
            saved = []
            train_ppo(
                ENV,
                make_point_networks(),
                _config(checkpoint_every_steps=every),
                total_steps=2 * STEPS,
                checkpoint_fn=lambda state, steps, saved=saved: saved.append((state, steps)),
            )
            assert [steps for _, steps in saved] == expected
            for state, steps in saved:
                assert isinstance(state, TrainingState)
                assert int(state.steps_taken) == steps

    def test_going_on_from_a_state_gives_what_an_uninterrupted_run_gives(self):
        whole = make_point_networks(seed=1)
        train_ppo(ENV, whole, _config(), total_steps=4 * STEPS)

        halves = make_point_networks(seed=1)
        first = train_ppo(ENV, halves, _config(), total_steps=2 * STEPS)
        second = train_ppo(
            ENV,
            make_point_networks(seed=9),  # not used: the state has its own network
            _config(),
            total_steps=4 * STEPS,
            initial_state=first.training_state,
        )
        assert (second.total_steps, second.total_iterations) == (4 * STEPS, 2)
        assert second.training_state.networks is halves
        _assert_equal(_weights(whole), _weights(halves))

    def test_a_finished_state_is_not_trained_further(self):
        state = new_training_state(ENV, make_point_networks(), 4, 0)
        state = state.replace(steps_taken=jax.numpy.float32(500.0))
        result = train_ppo(ENV, state.networks, _config(), total_steps=STEPS, initial_state=state)
        assert (result.total_steps, result.total_iterations) == (500, 0)
        assert result.training_state.steps_taken.dtype == jax.numpy.uint32

    def test_a_state_with_another_number_of_environments_is_refused(self):
        state = new_training_state(ENV, make_point_networks(), 8, 0)
        with pytest.raises(ValueError, match="8 environments but n_envs is 4"):
            train_ppo(ENV, state.networks, _config(), initial_state=state)

    def test_more_steps_than_can_be_counted_are_refused(self):
        with pytest.raises(ValueError, match="4294967295"):
            train_ppo(ENV, make_point_networks(), _config(), total_steps=2**32)

    def test_a_failing_evaluation_leaves_the_network_in_train_mode(self):
        class Failing(PointEnv):
            def step(self, state, action):
                raise RuntimeError("the simulator is gone")

        networks = make_point_networks()
        config = _config()
        config.eval.enabled = True
        with pytest.raises(RuntimeError, match="simulator is gone"):
            train_ppo(ENV, networks, config, total_steps=STEPS, eval_env=Failing())
        assert not networks.layers[1].action.layers[-1].deterministic

    def test_throughput_is_measured_if_asked_for(self):
        config = _config()
        config.ppo.logging_level = LoggingLevel.THROUGHPUT
        config.eval.enabled = True
        config.eval.every_steps = STEPS
        result = train_ppo(ENV, make_point_networks(), config, total_steps=STEPS, eval_env=EVAL_ENV)
        assert result.final_metrics["throughput/train_sps"] > 0.0
        assert result.final_metrics["throughput/eval_sps"] > 0.0
        assert "throughput/eval_sps" in result.eval_history[0]


@pytest.mark.usefixtures("quick_compile")
def test_videos_show_eval_mode_from_start_to_end():
    class Filmed(CountingEnv):
        def render(self, trajectory, height, width):
            assert len(trajectory) == 8
            return np.stack([np.full((height, width, 3), int(s.info["count"])) for s in trajectory])

    videos: list[VideoData] = []
    config = _config()
    config.video = VideoConfig(True, STEPS, 7, {"height": 2, "width": 3})
    config.ppo.logging_level = LoggingLevel.THROUGHPUT
    result = train_ppo(
        Filmed(5), CountingNetwork(), config, total_steps=2 * STEPS, video_fn=videos.append
    )
    assert [video.step for video in videos] == [0, STEPS, 2 * STEPS]
    assert videos[0].frames.shape == (8, 2, 3, 3)
    np.testing.assert_array_equal(videos[0].frames[:, 0, 0, 0], [0, 1, 2, 3, 4, 0, 1, 2])
    assert videos[0].episode_reward == 5.0
    assert videos[0].episode_length == 5
    assert result.final_metrics["throughput/video_sps"] > 0.0


@pytest.mark.usefixtures("quick_compile")
def test_an_environment_that_cannot_render_is_warned_about():
    config = _config(video=VideoConfig(enabled=True))
    with pytest.warns(UserWarning, match=r"EpisodeWrapper has no render\(\)"):
        train_ppo(ENV, make_point_networks(), config, total_steps=0, video_fn=lambda data: None)


def test_results_list_their_fields_in_a_fixed_order():
    from nnx_ppo.algorithms.config import TrainResult

    names = [field.name for field in dataclasses.fields(TrainResult)]
    assert names == [
        "training_state", "final_metrics", "eval_history", "total_steps", "total_iterations"
    ]  # fmt: skip
