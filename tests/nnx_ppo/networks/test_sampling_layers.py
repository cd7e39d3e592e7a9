"""Tests of the squashed normal sampler: density, entropy, randomness."""

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.sampling_layers import ActionSampler, NormalTanhSampler


def parameters(batch: int = 6, actions: int = 3, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (batch, 2 * actions))


def draws(sampler: NormalTanhSampler) -> int:
    return int(sampler.rng.count[...])


def test_log_likelihood_is_that_of_the_squashed_normal() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 0.0, min_std=0.1, std_scale=0.5)
    x = parameters()
    result = sampler((), x)
    mean, spread = np.split(np.asarray(x, np.float64), 2, axis=-1)
    std = (np.log1p(np.exp(spread)) + 0.1) * 0.5
    np.testing.assert_allclose(result.metrics["mu"], mean, rtol=1e-6)
    np.testing.assert_allclose(result.metrics["sigma"], std, rtol=1e-6)
    raw = np.asarray(result.rollout_extras, np.float64)
    normal = -0.5 * ((raw - mean) / std) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(std)
    expected = np.sum(normal - np.log(1.0 - np.tanh(raw) ** 2), axis=-1)
    np.testing.assert_allclose(result.output["log_likelihood"], expected, rtol=2e-5)
    np.testing.assert_allclose(result.output["action"], np.tanh(raw), atol=1e-6)


def test_the_density_integrates_to_one() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 0.0)
    actions = np.linspace(-1.0, 1.0, 20_002)[1:-1]
    raw = jp.asarray(np.arctanh(actions)[:, None], jp.float32)
    x = jp.broadcast_to(jp.asarray([[0.3, -0.2]]), (len(actions), 2))
    density = np.exp(sampler((), x, raw).output["log_likelihood"])
    assert np.trapezoid(density, actions) == pytest.approx(1.0, abs=1e-3)


def test_samples_have_the_mean_and_spread_asked_for() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(1), 0.0)
    x = jp.broadcast_to(jp.asarray([[0.5, 1.0]]), (20_000, 2))
    raw = sampler((), x).rollout_extras
    std = float(sampler((), x).metrics["sigma"][0, 0])
    assert float(raw.mean()) == pytest.approx(0.5, abs=4 * std / np.sqrt(20_000))
    assert float(raw.std()) == pytest.approx(std, rel=0.02)


def test_log_likelihood_stays_finite_far_out() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 1.0)
    sampler.eval()
    x = jp.asarray([[50.0, -50.0, 0.0, 0.0]])
    result = sampler((), x)
    assert np.isfinite(result.output["log_likelihood"]).all()
    assert np.isfinite(result.regularization_loss).all()
    np.testing.assert_array_equal(result.output["action"], [[1.0, -1.0]])


def test_replay_scores_the_stored_action() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 1e-2)
    x = parameters()
    first = sampler((), x)
    again = sampler((), x, first.rollout_extras)
    np.testing.assert_array_equal(again.output["action"], first.output["action"])
    np.testing.assert_array_equal(again.output["log_likelihood"], first.output["log_likelihood"])
    np.testing.assert_array_equal(again.rollout_extras, first.rollout_extras)


def test_replay_in_eval_mode_scores_the_stored_action_too() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 1e-2)
    stored = sampler((), parameters()).rollout_extras
    sampler.eval()
    np.testing.assert_array_equal(sampler((), parameters(), stored).rollout_extras, stored)


def test_gradient_of_the_log_likelihood_treats_the_action_as_given() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 0.0)
    x = jp.asarray([[0.2, 0.4]])
    stored = sampler((), x).rollout_extras

    def replayed(x: jax.Array) -> jax.Array:
        return sampler((), x, stored).output["log_likelihood"][0]

    gradient = jax.grad(replayed)(x)
    std = float(sampler((), x, stored).metrics["sigma"][0, 0])
    assert float(gradient[0, 0]) == pytest.approx(float(stored[0, 0] - 0.2) / std**2, rel=1e-5)
    # The same draw again, now sampled under the gradient.
    sampler.rng.count[...] = jp.asarray(0, jp.uint32)
    fresh = nnx.grad(lambda s, x: s((), x).output["log_likelihood"][0], argnums=1)
    np.testing.assert_allclose(fresh(sampler, x), gradient, rtol=1e-6)


def test_entropy_estimate_is_unbiased() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(3), 1.0)
    x = jp.broadcast_to(jp.asarray([[0.3, 0.1]]), (20_000, 2))
    result = sampler((), x)
    assert result.regularization_loss.shape == (20_000,)
    estimate = -float(result.regularization_loss.mean())
    # The entropy is also minus the mean log-likelihood of samples.
    assert estimate == pytest.approx(-float(result.output["log_likelihood"].mean()), abs=0.015)


def test_entropy_weight_scales_the_regularization() -> None:
    losses = []
    for weight in (1.0, 0.1):
        sampler = NormalTanhSampler(nnx.Rngs(3), weight)
        losses.append(np.asarray(sampler((), parameters()).regularization_loss))
    np.testing.assert_allclose(losses[0], 10.0 * losses[1], rtol=1e-6)


def test_entropy_gradient_widens_a_narrow_distribution() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 1.0)
    loss = nnx.grad(lambda s, x: s((), x).regularization_loss.sum(), argnums=1)
    assert float(loss(sampler, jp.asarray([[0.0, -2.0]]))[0, 1]) < -0.1


def test_eval_returns_the_mean_and_draws_nothing() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 1.0)
    x = parameters()
    sampler.eval()
    result = sampler((), x)
    np.testing.assert_array_equal(result.output["action"], jp.tanh(x[:, :3]))
    assert draws(sampler) == 0
    assert np.isfinite(result.regularization_loss).all()
    sampler.train()
    assert float(jp.max(jp.abs(sampler((), x).output["action"] - jp.tanh(x[:, :3])))) > 0.1


def test_eval_can_be_traced_over_a_closed_over_network() -> None:
    net = Sequential([Dense(3, 4, nnx.Rngs(0)), NormalTanhSampler(nnx.Rngs(1), 1e-2)])
    net.eval()
    x = jp.ones((2, 3))
    got = jax.jit(lambda x: net([(), ()], x).output["action"])(x)
    np.testing.assert_allclose(got, net([(), ()], x).output["action"], rtol=1e-6)


@pytest.mark.parametrize(("weight", "fresh", "replayed"), [(1.0, 2, 1), (0.0, 1, 0)])
def test_noise_is_drawn_only_where_it_is_needed(weight: float, fresh: int, replayed: int) -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), weight)
    extras = sampler((), parameters()).rollout_extras
    assert draws(sampler) == fresh
    sampler((), parameters(), extras)
    assert draws(sampler) == fresh + replayed


def test_consecutive_samples_differ() -> None:
    sampler = NormalTanhSampler(nnx.Rngs(0), 1e-2)
    step = nnx.jit(lambda s, x: s((), x).output["action"])
    actions = [np.asarray(step(sampler, parameters())) for _ in range(3)]
    assert np.abs(actions[0] - actions[1]).max() > 0.01
    assert np.abs(actions[1] - actions[2]).max() > 0.01
    assert draws(sampler) == 6


def test_mode_is_toggled_through_containers() -> None:
    net = Sequential([Dense(3, 4, nnx.Rngs(0)), NormalTanhSampler(nnx.Rngs(1), 1e-2)])
    assert isinstance(net[1], ActionSampler)
    assert net[1].deterministic is False
    net.eval()
    assert net[1].deterministic is True
    net.train()
    assert net[1].deterministic is False


def test_a_stream_may_be_given_directly() -> None:
    rngs = nnx.Rngs(0)
    sampler = NormalTanhSampler(rngs.default, 1e-2)
    sampler((), parameters())
    assert int(rngs.default.count[...]) == 2


def test_a_stream_of_its_own_is_preferred() -> None:
    rngs = nnx.Rngs(0, action_sampling=1)
    NormalTanhSampler(rngs, 1e-2)((), parameters())
    assert int(rngs.action_sampling.count[...]) == 2
    assert int(rngs.default.count[...]) == 0
    only_named = NormalTanhSampler(nnx.Rngs(action_sampling=1), 1e-2)
    assert only_named((), parameters()).output["action"].shape == (6, 3)


def test_streams_without_a_usable_name_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match=r"'action_sampling' or 'default'.*\['params'\]"):
        NormalTanhSampler(nnx.Rngs(params=0), 1e-2)


def test_an_odd_number_of_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"even number.*\(2, 5\)"):
        NormalTanhSampler(nnx.Rngs(0), 1e-2)((), jp.zeros((2, 5)))
