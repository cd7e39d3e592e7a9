import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from training_cases import CountingNetwork

from nnx_ppo.algorithms.gae import gae
from nnx_ppo.algorithms.ppo import ppo_loss
from nnx_ppo.algorithms.types import LoggingLevel, PPONetworkOutput, Transition
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

LEVEL = LoggingLevel.LOSSES | LoggingLevel.ACTOR_EXTRA | LoggingLevel.CRITIC_EXTRA
GAMMA, LAMBDA, CLIP = 0.9, 0.8, 0.2


class Table(StatefulModule):
    """Values and log-likelihoods are the observation times a weight."""

    def __init__(self, heads=None):
        self.value_weight = nnx.Param(jp.array(1.0))
        self.action_weight = nnx.Param(jp.array(1.0))
        self.heads = heads

    def __call__(self, module_state, obs, rollout_extras=None):
        value = obs[:, 0] * self.value_weight[...]
        loglikelihood = obs[:, 1] * self.action_weight[...]
        if self.heads is not None:
            loglikelihood = dict.fromkeys(self.heads, loglikelihood)
            value = dict.fromkeys(self.heads, value)
        output = PPONetworkOutput(obs, loglikelihood, value)
        return StatefulModuleOutput(module_state, output, jp.full(obs.shape[0], 0.25), {})


def _data(seed=0, n_steps=6, n_envs=3, heads=None):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jp.asarray(rng.normal(size=shape).astype(np.float32))

    obs, last_obs = draw(n_steps, n_envs, 2), draw(n_envs, 2)
    old = draw(n_steps, n_envs) * 0.3 + obs[..., 1]
    rewards = {head: draw(n_steps, n_envs) for head in heads} if heads else draw(n_steps, n_envs)
    done = jp.asarray(rng.uniform(size=(n_steps, n_envs)) < 0.3)
    truncated = done & jp.asarray(rng.uniform(size=(n_steps, n_envs)) < 0.5)
    output = PPONetworkOutput(obs, dict.fromkeys(heads, old) if heads else old, None)
    next_obs = jp.concatenate([obs[1:], last_obs[None]])
    return Transition(obs, output, rewards, done, truncated, next_obs, {}, None)


def _loss(network, data, normalize=False, combine=False, weight=0.5, bootstrap=False):
    return ppo_loss(
        network, (), data, CLIP, normalize, combine, GAMMA, LAMBDA, weight, LEVEL, bootstrap
    )


def _advantages(data, rewards, truncated=None):
    return np.asarray(
        gae(
            rewards=rewards,
            values_excl_last=data.obs[..., 0],
            last_value=data.next_obs[-1, :, 0],
            done=data.done,
            truncation=data.truncated if truncated is None else truncated,
            lambda_=LAMBDA,
            gamma=GAMMA,
        ),
        np.float64,
    )


def _expected(data, advantages, normalize):
    """Actor and critic loss by the formulas, in float64."""
    critic = 0.5 * np.mean(np.square(advantages))  # the target is value + advantage
    if normalize:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    old = np.asarray(data.network_output.loglikelihoods, np.float64)
    ratio = np.exp(np.asarray(data.obs[..., 1], np.float64) - old)
    clipped = np.clip(ratio, 1 - CLIP, 1 + CLIP)
    actor = -np.mean(np.minimum(ratio * advantages, clipped * advantages))
    return actor, critic, np.mean(np.abs(ratio - 1) > CLIP), advantages


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_is_the_sum_of_its_formulas(normalize):
    data = _data()
    loss, metrics = _loss(Table(), data, normalize)
    advantages = _advantages(data, data.rewards)
    actor, critic, clipping, used = _expected(data, advantages, normalize)
    assert float(metrics["losses/actor"]) == pytest.approx(actor, abs=1e-6)
    assert float(metrics["losses/critic"]) == pytest.approx(critic, abs=1e-6)
    assert float(metrics["losses/regularization"]) == 0.25
    assert float(metrics["losses/clipping_fraction"]) == pytest.approx(clipping, abs=1e-6)
    np.testing.assert_allclose(metrics["losses/advantages"], used, atol=1e-5)
    target = np.asarray(data.obs[..., 0]) + advantages
    explained = 1.0 - 2.0 * critic / (np.var(target) + 1e-8)
    assert float(metrics["losses/critic_R^2"]) == pytest.approx(explained, abs=1e-5)
    assert float(loss) == pytest.approx(actor + 0.5 * critic + 0.25, abs=1e-5)


def test_several_rewards_each_train_their_head():
    data = _data(heads=("a", "b"))
    loss, metrics = _loss(Table(("a", "b")), data)
    expected = 0.25
    for head in ("a", "b"):
        one = data.replace(
            network_output=data.network_output.replace(
                loglikelihoods=data.network_output.loglikelihoods[head]
            )
        )
        actor, critic, _, _ = _expected(one, _advantages(data, data.rewards[head]), False)
        assert float(metrics["losses/actor"][head]) == pytest.approx(actor, abs=1e-6)
        expected += actor + 0.5 * critic
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_combined_advantages_are_the_sum_for_every_head():
    data = _data(heads=("a", "b"))
    _, metrics = _loss(Table(("a", "b")), data, combine=True)
    total = sum(_advantages(data, data.rewards[head]) for head in ("a", "b"))
    for head in ("a", "b"):
        np.testing.assert_allclose(metrics["losses/advantages"][head], total, atol=1e-5)


class OneActor(Table):
    """One action for two rewards."""

    def __call__(self, module_state, obs, rollout_extras=None):
        out = super().__call__(module_state, obs, rollout_extras)
        output = out.output.replace(loglikelihoods=out.output.loglikelihoods["a"])
        return out.replace(output=output)


def _one_actor_data():
    data = _data(heads=("a", "b"))
    loglikelihoods = data.network_output.loglikelihoods["a"]
    return data.replace(network_output=data.network_output.replace(loglikelihoods=loglikelihoods))


def test_combined_advantages_serve_a_single_head():
    data = _one_actor_data()
    _, metrics = _loss(OneActor(("a", "b")), data, combine=True)
    total = sum(_advantages(data, data.rewards[head]) for head in ("a", "b"))
    np.testing.assert_allclose(metrics["losses/advantages"], total, atol=1e-5)


def test_rewards_that_match_no_head_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="combine_advantages=True"):
        _loss(OneActor(("a", "b")), _one_actor_data())


def test_the_actors_gradient_stops_where_the_ratio_is_clipped():
    data = _data()
    far = data.network_output.replace(loglikelihoods=data.obs[..., 1] - 1.0)  # ratio e
    data = data.replace(network_output=far, rewards=jp.full_like(data.rewards, 100.0))
    data = data.replace(done=jp.ones_like(data.done), truncated=jp.zeros_like(data.truncated))
    gradient, _ = nnx.grad(_loss, has_aux=True)(Table(), data)
    assert float(gradient["action_weight"][...]) == 0.0
    assert float(gradient["value_weight"][...]) != 0.0


def test_bootstrapping_continues_truncated_episodes_with_the_value_of_their_last_observation():
    data = _data(seed=3)
    assert bool(jp.any(data.truncated))
    _, metrics = _loss(Table(), data, bootstrap=True)
    rewards = data.rewards + GAMMA * data.next_obs[..., 0] * data.truncated.astype(jp.float32)
    expected = _advantages(data, rewards, truncated=jp.zeros_like(data.truncated))
    np.testing.assert_allclose(metrics["losses/advantages"], expected, atol=1e-5)
    _, metrics = _loss(Table(), data, bootstrap=False)
    assert float(jp.max(jp.abs(metrics["losses/advantages"][data.truncated]))) == 0.0


def test_only_what_was_asked_for_is_reported():
    data = _data()
    arguments = (Table(), (), data, CLIP, False, False, GAMMA, LAMBDA, 1.0)
    assert ppo_loss(*arguments, LoggingLevel.NONE)[1] == {}
    assert set(ppo_loss(*arguments, LoggingLevel.ACTOR_EXTRA)[1]) == {"losses/clipping_fraction"}


def test_a_network_with_carry_starts_where_the_rollout_started():
    network = CountingNetwork()
    obs = jp.zeros((4, 2, 1))
    output = PPONetworkOutput(obs, jp.full((4, 2), 0.5), None)
    done = jp.zeros((4, 2), bool)
    data = Transition(obs, output, jp.ones((4, 2)), done, done, obs, {}, None)
    loss, metrics = ppo_loss(
        network, jp.array([3, 7]), data, CLIP, False, False, 0.0, LAMBDA, 1.0, LoggingLevel.LOSSES
    )
    # Every value is the weight 0.5 and nothing is discounted in: each advantage is 1 - 0.5.
    assert float(metrics["losses/actor"]) == pytest.approx(-0.5)
    assert float(loss) == pytest.approx(-0.5 + 0.125)
