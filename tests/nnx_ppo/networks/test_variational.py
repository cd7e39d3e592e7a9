"""Tests of the variational bottlenecks."""

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.variational import AR1VariationalBottleneck, VariationalBottleneck

BOTH = pytest.mark.parametrize("bottleneck", [VariationalBottleneck, AR1VariationalBottleneck])


def parameters(batch: int = 3, latents: int = 2) -> jax.Array:
    return jp.asarray(np.random.default_rng(5).normal(size=(batch, 2 * latents)), jp.float32)


def keys_of(state: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(state["keys"] if isinstance(state, dict) else state))


def constant(mean: float, spread: float = 0.54, batch: int = 3) -> jax.Array:
    return jp.concatenate([jp.full((batch, 2), mean), jp.full((batch, 2), spread)], axis=-1)


def test_the_divergence_is_that_of_two_normals() -> None:
    net = VariationalBottleneck(2, nnx.Rngs(0), kl_weight=0.5, min_std=0.01)
    x = parameters()
    result = net(net.initialize_state(3), x)
    mean, spread = np.split(np.asarray(x, np.float64), 2, axis=-1)
    std = np.log1p(np.exp(spread)) + 0.01
    expected = 0.5 * np.sum(mean**2 + std**2 - 2.0 * np.log(std) - 1.0, axis=-1)
    np.testing.assert_allclose(result.metrics["mu"], mean, rtol=1e-6)
    np.testing.assert_allclose(result.metrics["sigma"], std, rtol=1e-6)
    np.testing.assert_allclose(result.metrics["kl_divergence"], expected, rtol=1e-5)
    np.testing.assert_allclose(result.regularization_loss, 0.5 * expected, rtol=1e-5)
    assert result.rollout_extras is None
    assert (net.latent_size, net.kl_weight) == (2, 0.5)


@BOTH
def test_the_divergence_vanishes_at_the_prior_and_grows_with_the_mean(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    state = net.initialize_state(3)
    values = [
        float(net(state, constant(mean)).metrics["kl_divergence"][0]) for mean in (0.0, 1.0, -2.0)
    ]
    assert 0.0 <= values[0] < 0.1
    assert values[0] < values[1] < values[2]


@BOTH
def test_samples_spread_around_the_mean(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    result = net(net.initialize_state(10_000), constant(1.5, batch=10_000))
    sigma = float(result.metrics["sigma"][0, 0])
    np.testing.assert_allclose(result.output.mean(axis=0), [1.5, 1.5], atol=5 * sigma / 100.0)
    np.testing.assert_allclose(result.output.std(axis=0), [sigma, sigma], rtol=0.03)


@BOTH
def test_latents_depend_on_carry_and_input_alone(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    state, x = net.initialize_state(3), parameters()
    first, again = net(state, x), net(state, x)
    np.testing.assert_array_equal(first.output, again.output)
    part = net(jax.tree.map(lambda leaf: leaf[1:2], state), x[1:2])
    np.testing.assert_allclose(part.output, first.output[1:2], rtol=1e-6)
    assert int(net.rng.count[...]) == 1


@BOTH
def test_keys_advance_and_differ_between_environments(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    state = net.initialize_state(3)
    result = net(state, constant(0.0))
    following = net(result.next_state, constant(0.0))
    seen = np.concatenate(
        [keys_of(state), keys_of(result.next_state), keys_of(following.next_state)]
    )
    assert len(np.unique(seen, axis=0)) == 9
    assert len(np.unique(np.concatenate([result.output, following.output]))) == 12
    assert jp.issubdtype(jax.tree.leaves(state)[0].dtype, jax.dtypes.prng_key)


@BOTH
def test_noise_comes_from_a_key_that_is_not_split_again(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    state = net.initialize_state(1)
    key = (state["keys"] if isinstance(state, dict) else state)[0]
    next_key, noise_key = jax.random.split(key)
    result = net(state, constant(0.0, batch=1))
    expected = jax.random.normal(noise_key, (2,)) * result.metrics["sigma"][0]
    np.testing.assert_allclose(result.output[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(keys_of(result.next_state)[0], jax.random.key_data(next_key))


@BOTH
def test_reset_keeps_the_keys(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    used = net(net.initialize_state(3), parameters()).next_state
    reset = net.reset_state(used)
    np.testing.assert_array_equal(keys_of(reset), keys_of(used))
    assert jax.tree.structure(reset) == jax.tree.structure(used)
    per_env = jax.vmap(net.reset_state)(used)
    np.testing.assert_array_equal(keys_of(per_env), keys_of(used))


@BOTH
def test_eval_returns_the_mean_and_leaves_all_randomness_alone(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    state, x = net.initialize_state(3), parameters()
    net.eval()
    assert net.deterministic is True
    result = jax.jit(lambda s, x: net(s, x))(state, x)
    np.testing.assert_array_equal(result.output, x[:, :2])
    np.testing.assert_array_equal(keys_of(result.next_state), keys_of(state))
    fresh = net.initialize_state(3)
    assert int(net.rng.count[...]) == 1
    assert jax.tree.structure(fresh) == jax.tree.structure(state)
    net.train()
    assert not np.array_equal(keys_of(net.initialize_state(3)), keys_of(fresh))
    assert float(jp.max(jp.abs(net(state, x).output - x[:, :2]))) > 0.01


@BOTH
def test_weights_scale_the_regularization(bottleneck: Any) -> None:
    losses = []
    for weight in (1.0, 0.1):
        net = bottleneck(2, nnx.Rngs(0), kl_weight=weight)
        losses.append(np.asarray(net(net.initialize_state(3), parameters()).regularization_loss))
    np.testing.assert_allclose(losses[0], 10.0 * losses[1], rtol=1e-5)


@BOTH
def test_streams(bottleneck: Any) -> None:
    rngs = nnx.Rngs(0, latent_sampling=1)
    bottleneck(2, rngs).initialize_state(3)
    assert int(rngs.latent_sampling.count[...]) == 1
    assert int(rngs.default.count[...]) == 0
    with pytest.raises(ValueError, match=bottleneck.__name__):
        bottleneck(2, nnx.Rngs(params=0))


@BOTH
def test_inputs_of_another_size_are_refused(bottleneck: Any) -> None:
    net = bottleneck(2, nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"so 4 inputs, got shape \(3, 5\)"):
        net(net.initialize_state(3), jp.zeros((3, 5)))


def test_the_first_step_of_an_episode_has_no_difference() -> None:
    net = AR1VariationalBottleneck(2, nnx.Rngs(0))
    state = net.initialize_state(3)
    assert np.isnan(state["last_z"]).all()
    assert state["last_z"].shape == (3, 2)
    result = net(state, parameters())
    np.testing.assert_array_equal(result.metrics["l2_diff"], [0.0, 0.0, 0.0])
    np.testing.assert_array_equal(result.next_state["last_z"], result.output)
    assert np.isnan(net.reset_state(result.next_state)["last_z"]).all()


def test_later_steps_are_drawn_towards_the_one_before() -> None:
    net = AR1VariationalBottleneck(2, nnx.Rngs(0), kl_weight=0.5, ar1_weight=3.0)
    first = net(net.initialize_state(3), parameters())
    second = net(first.next_state, parameters())
    difference = np.mean((np.asarray(second.output) - np.asarray(first.output)) ** 2, axis=-1)
    np.testing.assert_allclose(second.metrics["l2_diff"], difference, rtol=1e-6)
    assert difference.min() > 0.0
    expected = 0.5 * np.asarray(second.metrics["kl_divergence"]) + 3.0 * difference
    np.testing.assert_allclose(second.regularization_loss, expected, rtol=1e-6)


def test_one_environment_can_be_reset_alone() -> None:
    net = AR1VariationalBottleneck(2, nnx.Rngs(0))
    state = net(net.initialize_state(3), parameters()).next_state
    state["last_z"] = state["last_z"].at[1].set(jp.nan)
    difference = np.asarray(net(state, parameters()).metrics["l2_diff"])
    assert difference[1] == 0.0
    assert difference[0] > 0.0 and difference[2] > 0.0


def test_a_single_nan_latent_is_not_taken_for_a_reset() -> None:
    net = AR1VariationalBottleneck(2, nnx.Rngs(0))
    state = net(net.initialize_state(3), parameters()).next_state
    state["last_z"] = state["last_z"].at[1, 0].set(jp.nan)
    difference = np.asarray(net(state, parameters()).metrics["l2_diff"])
    np.testing.assert_array_equal(np.isnan(difference), [False, True, False])


@pytest.mark.parametrize("through_time", [True, False])
def test_gradients_stay_finite_and_cross_time_only_if_asked(through_time: bool) -> None:
    net = AR1VariationalBottleneck(
        2, nnx.Rngs(0), kl_weight=0.0, backprop_through_time=through_time
    )
    state = net.initialize_state(3)

    def loss(first: jax.Array, second: jax.Array) -> jax.Array:
        result = net(state, first)
        later = net(result.next_state, second)
        return jp.sum(result.regularization_loss) + jp.sum(later.regularization_loss)

    gradients = jax.grad(loss, argnums=(0, 1))(parameters(), parameters())
    assert np.isfinite(gradients).all()
    assert float(jp.max(jp.abs(gradients[1]))) > 0.01
    assert bool(jp.any(gradients[0] != 0.0)) is through_time


def test_the_mean_is_the_next_reference_in_eval() -> None:
    net = AR1VariationalBottleneck(2, nnx.Rngs(0))
    net.eval()
    state = net.initialize_state(3)
    first = net(state, constant(1.0))
    second = net(first.next_state, constant(3.0))
    np.testing.assert_allclose(second.metrics["l2_diff"], [4.0, 4.0, 4.0], rtol=1e-6)
