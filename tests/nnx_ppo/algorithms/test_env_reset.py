import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.algorithms.env_reset import reset_finished
from nnx_ppo.algorithms.trees import tree_where

pytestmark = pytest.mark.usefixtures("quick_compile")


class NoisyEnv:
    """Resets to noise, with leaves of every kind."""

    def __init__(self):
        self.resets_traced = 0

    def reset(self, rng):
        self.resets_traced += 1
        noise = jax.random.normal(rng, (3,))
        return {"x": noise, "key": rng, "level": 3, "done": jp.array(0.0), "flags": noise > 0}

    def step(self, state, action):
        return state


@pytest.mark.parametrize("batch_size, done_rate", [(1, 1.0), (7, 0.5), (200, 0.02), (200, 1.0)])
def test_resetting_in_groups_equals_resetting_everything(batch_size, done_rate):
    env = NoisyEnv()
    reset = jax.vmap(env.reset)
    states = reset(jax.random.split(jax.random.key(0), batch_size))
    keys = jax.random.split(jax.random.key(1), batch_size)
    done = jax.random.uniform(jax.random.key(2), (batch_size,)) < done_rate

    states["done"] = done  # stepped states may have another type than reset ones
    fresh = {**reset(keys)}
    expected = tree_where(done, fresh, {**states, "done": done.astype(jp.float32)})
    result = jax.jit(lambda *arguments: reset_finished(env, *arguments))(states, done, keys)
    for name, leaf in expected.items():
        assert result[name].dtype == leaf.dtype
        if name == "key":
            leaf, result[name] = map(jax.random.key_data, (leaf, result[name]))
        np.testing.assert_array_equal(result[name], leaf)


def test_resetting_is_traced_once():
    env = NoisyEnv()
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 64))
    env.resets_traced = 0
    keys = jax.random.split(jax.random.key(1), 64)
    jax.jit(lambda *arguments: reset_finished(env, *arguments))(states, jp.zeros(64, bool), keys)
    assert env.resets_traced == 1


@jax.tree_util.register_pytree_node_class
class SharedFieldState:
    """Keeps one copy of a field for all environments, as simulators on a GPU do."""

    def __init__(self, x, shared):
        self.x, self.shared = x, shared

    def tree_flatten(self):
        return (self.x, self.shared), None

    @classmethod
    def tree_unflatten(cls, _, children):
        x, shared = children
        return cls(x, shared[0] if getattr(shared, "ndim", 0) == 3 else shared)


class SharedFieldEnv:
    def reset(self, rng):
        del rng
        return SharedFieldState(jp.array(1.0), jp.full((7, 4), 2.0))

    def step(self, state, action):
        return state


def test_fields_shared_between_environments_come_from_the_reset():
    states = SharedFieldState(jp.full(3, 5.0), jp.ones((7, 4)))
    done = jp.array([True, False, False])
    keys = jax.random.split(jax.random.key(0), 3)
    result = reset_finished(SharedFieldEnv(), states, done, keys)
    np.testing.assert_array_equal(result.x, [1.0, 5.0, 5.0])
    np.testing.assert_array_equal(result.shared, jp.full((7, 4), 2.0))
