"""Tests of Dense layers and of the functions that build networks."""

import inspect
import types
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.factories import make_mlp, make_mlp_actor_critic, make_mlp_layers
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.utils import Flattener

ZEROS = nnx.initializers.zeros


def test_dense_is_a_linear_map_and_an_activation() -> None:
    dense = Dense(3, 2, nnx.Rngs(0), nnx.relu)
    assert dense.linear.bias is not None
    dense.linear.bias[...] = jp.asarray([0.5, -50.0])
    x = jp.asarray([[1.0, 2.0, 3.0]])
    result = dense("carry", x)
    expected = np.maximum(np.asarray(x) @ dense.linear.kernel[...] + dense.linear.bias[...], 0.0)
    np.testing.assert_allclose(result.output, expected, rtol=1e-6)
    assert float(result.output[0, 1]) == 0.0
    assert (result.next_state, result.metrics, result.rollout_extras) == ("carry", {}, None)
    assert result.regularization_loss.shape == ()
    assert (dense.in_features, dense.out_features, dense.activation) == (3, 2, nnx.relu)


def test_dense_passes_keywords_to_the_linear_layer() -> None:
    dense = Dense(3, 2, nnx.Rngs(0), kernel_init=nnx.initializers.ones, use_bias=False)
    assert dense.linear.bias is None
    np.testing.assert_array_equal(dense((), jp.ones((1, 3))).output, [[3.0, 3.0]])


def test_dense_accepts_numpy_input() -> None:
    dense = Dense(3, 2, nnx.Rngs(0))
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(dense((), x).output, dense((), jp.asarray(x)).output)


def test_mlp_layers_follow_the_sizes() -> None:
    layers = make_mlp_layers(
        [4, 8, 6, 2], nnx.Rngs(0), nnx.tanh, activation_last_layer=False, kernel_init=ZEROS
    )
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(4, 8), (8, 6), (6, 2)]
    assert [layer.activation for layer in layers] == [nnx.tanh, nnx.tanh, None]
    assert make_mlp_layers([4, 2], nnx.Rngs(0), kernel_init=ZEROS)[-1].activation is nnx.relu
    assert make_mlp_layers([4], nnx.Rngs(0)) == []


def test_mlp_is_a_sequential() -> None:
    net = make_mlp((3, 2, 3), nnx.Rngs(0), nnx.tanh, False, use_bias=False)
    assert isinstance(net, Sequential)
    x = jp.ones((3, 3))
    expected = jp.tanh(x @ net[0].linear.kernel[...]) @ net[1].linear.kernel[...]
    np.testing.assert_allclose(net(net.initialize_state(3), x).output, expected, rtol=1e-6)


def actor_critic(**arguments: object) -> Any:
    defaults: dict = {"actor_hidden_sizes": [8, 8], "critic_hidden_sizes": [8, 8]}
    return make_mlp_actor_critic(5, 2, rngs=nnx.Rngs(0), **{**defaults, **arguments})


def test_actor_critic_layout() -> None:
    net = actor_critic(entropy_weight=0.5, min_std=0.25, std_scale=2.0)
    normalizer, adapter = net.layers
    assert isinstance(normalizer, Normalizer) and isinstance(adapter, PPOAdapter)
    sampler = adapter.action.layers[-1]
    assert isinstance(sampler, NormalTanhSampler)
    assert (sampler.entropy_weight, sampler.min_std, sampler.std_scale) == (0.5, 0.25, 2.0)
    sizes = [(layer.in_features, layer.out_features) for layer in adapter.action.layers[:-1]]
    assert sizes == [(5, 8), (8, 8), (8, 4)]
    assert [layer.out_features for layer in adapter.value.layers] == [8, 8, 1]
    assert adapter.action.layers[-2].activation is None
    assert adapter.value.layers[-1].activation is None
    kernels = [part.layers[0].linear.kernel[...] for part in (adapter.action, adapter.value)]
    assert float(jp.max(jp.abs(kernels[0] - kernels[1]))) > 0.1


def test_actor_critic_steps() -> None:
    net = actor_critic()
    result = nnx.jit(lambda n, s, x: n(s, x))(net, net.initialize_state(4), jp.ones((4, 5)))
    assert result.output.actions.shape == (4, 2)
    assert result.output.loglikelihoods.shape == (4,)
    assert result.output.value_estimates.shape == (4,)
    assert result.regularization_loss.shape == (4,)


def test_initial_kernels_are_uniform_with_the_scale_given() -> None:
    net = make_mlp_actor_critic(100, 2, [200], [], nnx.Rngs(0), initializer_scale=0.25)
    kernel = np.asarray(net.layers[1].action.layers[0].linear.kernel[...])
    bound = np.sqrt(3.0 * 0.25 / 100.0)
    assert np.abs(kernel).max() <= bound
    assert kernel.std() == pytest.approx(np.sqrt(0.25 / 100.0), rel=0.02)


@pytest.mark.parametrize(
    ("name", "function"), [("swish", nnx.swish), ("tanh", nnx.tanh), ("relu", nnx.relu)]
)
def test_activations_by_name(name: str, function: object) -> None:
    assert actor_critic(activation=name).layers[1].action.layers[0].activation is function


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(KeyError, match="'elu'.*'swish'"):
        actor_critic(activation="elu")


def test_without_normalizer_the_adapter_is_returned() -> None:
    assert isinstance(actor_critic(normalize_obs=False), PPOAdapter)


def test_observations_with_structure_are_flattened() -> None:
    size = types.MappingProxyType({"arm": (3,), "image": (2, 2), "goal": 1})
    net = make_mlp_actor_critic(size, 2, [8], [8], nnx.Rngs(0))
    assert [type(layer) for layer in net.layers] == [Normalizer, Flattener, PPOAdapter]
    assert net.layers[-1].value.layers[0].in_features == 8
    obs = {"arm": jp.ones((4, 3)), "image": jp.ones((4, 2, 2)), "goal": jp.ones((4, 1))}
    assert net(net.initialize_state(4), obs).output.actions.shape == (4, 2)


def test_positions_of_the_factory_arguments() -> None:
    names = list(inspect.signature(make_mlp_actor_critic).parameters)
    assert names == [
        "obs_size",
        "action_size",
        "actor_hidden_sizes",
        "critic_hidden_sizes",
        "rngs",
        "activation",
        "normalize_obs",
        "initializer_scale",
        "entropy_weight",
        "min_std",
        "std_scale",
    ]


def test_the_normalizer_learns_through_the_container() -> None:
    net = actor_critic()
    data = jp.asarray(np.random.default_rng(0).normal(size=(10, 50, 5)), jp.float32) * 3.0 + 1.0
    extras = net(net.initialize_state(50), data[0]).rollout_extras
    stacked = jax.tree.map(lambda x: jp.broadcast_to(x, (10, *x.shape)), extras)
    stacked[0] = data
    net.update_statistics(stacked)
    flat = np.asarray(data, np.float64).reshape(-1, 5)
    np.testing.assert_allclose(net.layers[0].mean[...], flat.mean(axis=0), atol=1e-5)
    std = np.sqrt(net.layers[0].M2[...] / net.layers[0].counter[...])
    np.testing.assert_allclose(std, flat.std(axis=0), atol=1e-5)
