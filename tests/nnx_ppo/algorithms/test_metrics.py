import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from training_cases import CountingNetwork

from nnx_ppo.algorithms.metrics import compute_metrics, log_metric, log_weight_stats
from nnx_ppo.algorithms.types import LoggingLevel, PPONetworkOutput, Transition

T, B = 3, 4


def _rollout():
    output = PPONetworkOutput(jp.full((T, B, 2), 0.5), jp.full((T, B), -1.0), jp.ones((T, B)))
    done = jp.zeros((T, B), bool).at[0].set(True)
    return Transition(
        obs={"a": jp.ones((T, B, 2)), "b": {"c": jp.arange(T * B).reshape(T, B)}},
        network_output=output,
        rewards={"x": jp.full((T, B), 2.0), "y": jp.zeros((T, B))},
        done=done,
        truncated=jp.zeros((T, B), bool),
        next_obs={},
        metrics={"env": {"speed": jp.ones((T, B))}, "net": {1: {"action": {2: jp.ones((T, B))}}}},
    )


@pytest.mark.parametrize(
    "level, names",
    [
        (LoggingLevel.NONE, set()),
        (LoggingLevel.ENV_METRICS, {"env/speed"}),
        (LoggingLevel.NETWORK_METRICS, {"net/1/action/2"}),
        (LoggingLevel.ACTOR_EXTRA, {"loglikelihood"}),
        (LoggingLevel.CRITIC_EXTRA, {"losses/predicted_value"}),
        (LoggingLevel.ROLLOUT_OBS, {"rollout_batch/obs/a", "rollout_batch/obs/b/c"}),
        (
            LoggingLevel.ROLLOUT_STATS,
            {"rollout_batch/reward/x", "rollout_batch/reward/y", "rollout_batch/action"},
        ),
    ],
)
def test_each_flag_adds_its_own_names_only(level, names):
    metrics = compute_metrics({}, _rollout(), level)
    expected = {f"{name}/{suffix}" for name in names for suffix in ("mean", "std")}
    if level is LoggingLevel.ROLLOUT_STATS:
        expected |= {"rollout_batch/done_rate", "rollout_batch/truncation_rate"}
        assert float(metrics["rollout_batch/done_rate"]) == pytest.approx(1 / T)
        assert float(metrics["rollout_batch/truncation_rate"]) == 0.0
    assert set(metrics) == expected


def test_observations_are_not_part_of_all():
    assert LoggingLevel.ROLLOUT_OBS not in LoggingLevel.ALL
    assert LoggingLevel.THROUGHPUT in LoggingLevel.ALL
    metrics = compute_metrics({}, _rollout(), LoggingLevel.ALL)
    assert not any(name.startswith("rollout_batch/obs") for name in metrics)


def test_losses_are_summarized_over_the_updates():
    metrics = compute_metrics(
        {"losses/actor": jp.array([1.0, 3.0])}, _rollout(), LoggingLevel.LOSSES
    )
    assert {name: float(value) for name, value in metrics.items()} == {
        "losses/actor/mean": 2.0,
        "losses/actor/std": 1.0,
    }


def test_percentiles_replace_mean_and_deviation():
    metrics = {}
    log_metric(metrics, "x", jp.arange(101, dtype=jp.float32), (0, 25, 100.0))
    assert {name: float(value) for name, value in metrics.items()} == {
        "x/p0": 0.0,
        "x/p25": 25.0,
        "x/p100": 100.0,
    }


@pytest.mark.parametrize("percentiles", [None, (), (50,)])
def test_of_flags_only_the_rate_is_logged(percentiles):
    metrics = {}
    log_metric(metrics, "flag", jp.array([True, False, False, False]), percentiles)
    assert {name: float(value) for name, value in metrics.items()} == {"flag": 0.25}


def test_lists_and_integers_can_be_logged():
    metrics = {}
    log_metric(metrics, "x", [jp.array([1, 3]), None, (jp.array(5),)])
    assert float(metrics["x/0/mean"]) == 2.0
    assert float(metrics["x/2/0/mean"]) == 5.0
    assert len(metrics) == 4


def test_weights_are_summarized_together():
    class TwoWeights(CountingNetwork):
        def __init__(self):
            super().__init__()
            self.other = nnx.Param(jp.array([1.0, 1.5]))

    network = TwoWeights()
    metrics = {}
    log_weight_stats(metrics, network)
    assert float(metrics["weights/mean"]) == pytest.approx(1.0)
    assert float(metrics["weights/std"]) == pytest.approx(np.std([0.5, 1.0, 1.5]))


def test_a_network_without_weights_is_warned_about():
    network = CountingNetwork()
    del network.weight
    metrics = {}
    with pytest.warns(UserWarning, match=r"no nnx\.Param"):
        log_weight_stats(metrics, network)
    assert metrics == {}
