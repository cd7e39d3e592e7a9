"""Tests of the recurrent layers against the cells' equations."""

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.recurrent import GRU, LSTM

LAYERS = pytest.mark.parametrize("layer", [LSTM, GRU])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def rollout(net: Any, xs: jax.Array) -> tuple[Any, list[np.ndarray]]:
    state, outputs = net.initialize_state(xs.shape[1]), []
    step = nnx.jit(lambda n, s, x: n(s, x))
    for x in xs:
        result = step(net, state, x)
        state = result.next_state
        outputs.append(np.asarray(result.output))
    return state, outputs


def test_lstm_follows_its_equations() -> None:
    net = LSTM(3, 4, nnx.Rngs(0))
    xs = jp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)), jp.float32)
    state, outputs = rollout(net, xs)
    w_i, w_h = net.cell.dense_i.kernel[...], net.cell.dense_h.kernel[...]
    bias = net.cell.dense_h.bias[...]
    c = h = np.zeros((2, 4))
    for x, output in zip(np.asarray(xs), outputs, strict=True):
        i, f, g, o = np.split(x @ w_i + h @ w_h + bias, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(output, h, atol=1e-6)
    assert isinstance(state, tuple)
    np.testing.assert_allclose(state[0], c, atol=1e-6)
    np.testing.assert_array_equal(state[1], outputs[-1])


def test_gru_follows_its_equations() -> None:
    net = GRU(3, 4, nnx.Rngs(0))
    xs = jp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)), jp.float32)
    state, outputs = rollout(net, xs)
    w_i, bias = net.cell.dense_i.kernel[...], net.cell.dense_i.bias[...]
    w_h = net.cell.dense_h.kernel[...]
    h = np.zeros((2, 4))
    for x, output in zip(np.asarray(xs), outputs, strict=True):
        r_i, z_i, n_i = np.split(x @ w_i + bias, 3, axis=-1)
        r_h, z_h, n_h = np.split(h @ w_h, 3, axis=-1)
        z = sigmoid(z_i + z_h)
        h = (1.0 - z) * np.tanh(n_i + sigmoid(r_i + r_h) * n_h) + z * h
        np.testing.assert_allclose(output, h, atol=1e-6)
    np.testing.assert_array_equal(state, outputs[-1])


@LAYERS
def test_results_have_one_regularization_per_environment(layer: Any) -> None:
    net = layer(3, 4, nnx.Rngs(0))
    result = net(net.initialize_state(2), jp.ones((2, 3)))
    np.testing.assert_array_equal(result.regularization_loss, [0.0, 0.0])
    assert (result.metrics, result.rollout_extras) == ({}, None)
    assert (net.in_features, net.hidden_features) == (3, 4)
    assert not hasattr(net, "initial_h")


@LAYERS
def test_environments_do_not_influence_each_other(layer: Any) -> None:
    net = layer(3, 4, nnx.Rngs(0))
    xs = jp.asarray(np.random.default_rng(1).normal(size=(3, 2, 3)), jp.float32)
    _, together = rollout(net, xs)
    _, alone = rollout(net, xs[:, 1:])
    np.testing.assert_allclose(np.asarray(together)[:, 1:], alone, atol=1e-6)


@LAYERS
def test_reset_equals_a_fresh_carry(layer: Any) -> None:
    for trainable in (False, True):
        net = layer(3, 4, nnx.Rngs(0), trainable_initial_state=trainable)
        fresh = net.initialize_state(2)
        used = net(fresh, jp.ones((2, 3))).next_state
        jax.tree.map(np.testing.assert_array_equal, net.reset_state(used), fresh)
        one = jax.tree.map(lambda leaf: leaf[0], used)
        jax.tree.map(
            np.testing.assert_array_equal,
            net.reset_state(one),
            jax.tree.map(lambda leaf: leaf[0], fresh),
        )


def test_trainable_initial_state_of_the_lstm_fills_the_pair_in_order() -> None:
    net = LSTM(3, 2, nnx.Rngs(0), trainable_initial_state=True)
    assert isinstance(net.initial_h, nnx.Param) and isinstance(net.initial_c, nnx.Param)
    np.testing.assert_array_equal(net.initial_h[...], [0.0, 0.0])
    net.initial_h[...] = jp.asarray([1.0, 2.0])
    net.initial_c[...] = jp.asarray([3.0, 4.0])
    for state in (net.initialize_state(2), net.reset_state((jp.zeros((2, 2)), jp.zeros((2, 2))))):
        np.testing.assert_array_equal(state[0], [[1.0, 2.0], [1.0, 2.0]])
        np.testing.assert_array_equal(state[1], [[3.0, 4.0], [3.0, 4.0]])


def test_trainable_initial_state_of_the_gru_is_its_carry() -> None:
    net = GRU(3, 2, nnx.Rngs(0), trainable_initial_state=True)
    net.initial_h[...] = jp.asarray([1.0, 2.0])
    np.testing.assert_array_equal(net.initialize_state(1), [[1.0, 2.0]])
    np.testing.assert_array_equal(net.reset_state(jp.zeros(2)), [1.0, 2.0])


@LAYERS
def test_gradients_reach_the_trainable_initial_state(layer: Any) -> None:
    net = layer(3, 4, nnx.Rngs(0), trainable_initial_state=True)

    def loss(net: Any) -> jax.Array:
        return jp.sum(net(net.initialize_state(2), jp.ones((2, 3))).output)

    gradients = nnx.grad(loss)(net)
    assert float(jp.max(jp.abs(gradients["initial_h"][...]))) > 1e-3


def test_initializers_and_activations_are_passed_on() -> None:
    ones, zeros = nnx.initializers.ones, nnx.initializers.zeros
    net = LSTM(
        1,
        1,
        nnx.Rngs(0),
        gate_fn=lambda x: x,
        activation_fn=lambda x: x,
        kernel_init=ones,
        recurrent_kernel_init=zeros,
        bias_init=ones,
    )
    # Every gate sees 2 + 1: c = 3 * 3, h = 3 * c.
    result = net(net.initialize_state(1), jp.asarray([[2.0]]))
    np.testing.assert_array_equal(result.output, [[27.0]])


def test_both_lstm_cells_compute_the_same_function() -> None:
    fast, plain = LSTM(3, 4, nnx.Rngs(0)), LSTM(3, 4, nnx.Rngs(0), use_optimized=False)
    assert isinstance(fast.cell, nnx.OptimizedLSTMCell)
    assert isinstance(plain.cell, nnx.LSTMCell)
    w_i = jp.split(fast.cell.dense_i.kernel[...], 4, axis=-1)
    w_h = jp.split(fast.cell.dense_h.kernel[...], 4, axis=-1)
    for name, kernel_i, kernel_h in zip(("i", "f", "g", "o"), w_i, w_h, strict=True):
        getattr(plain.cell, "if_" if name == "f" else f"i{name}").kernel[...] = kernel_i
        getattr(plain.cell, f"h{name}").kernel[...] = kernel_h
    xs = jp.asarray(np.random.default_rng(2).normal(size=(4, 2, 3)), jp.float32)
    np.testing.assert_allclose(rollout(fast, xs)[1], rollout(plain, xs)[1], atol=1e-6)
