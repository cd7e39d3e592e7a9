import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.algorithms.gae import gae


def _reference(rewards, values, last_value, done, truncation, lambda_, gamma):
    """The recursion in float64."""
    advantages = np.zeros(rewards.shape)
    advantage = np.zeros(rewards.shape[1])
    next_value = np.asarray(last_value, np.float64)
    for t in reversed(range(rewards.shape[0])):
        surprise = rewards[t] + gamma * np.where(done[t], 0.0, next_value) - values[t]
        surprise = np.where(truncation[t], 0.0, surprise)
        advantage = surprise + (1.0 - done[t]) * gamma * lambda_ * advantage
        advantages[t] = advantage
        next_value = values[t].astype(np.float64)
    return advantages


def _case(n_steps, n_envs, done_rate, seed, positive=False):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        numbers = rng.uniform(size=shape) if positive else rng.normal(size=shape)
        return numbers.astype(np.float32)

    done = rng.uniform(size=(n_steps, n_envs)) < done_rate
    return {
        "rewards": draw(n_steps, n_envs),
        "values_excl_last": draw(n_steps, n_envs),
        "last_value": draw(n_envs),
        "done": done,
        "truncation": done & (rng.uniform(size=done.shape) < 0.5),
    }


def _expected(case, lambda_, gamma):
    return _reference(
        case["rewards"].astype(np.float64),
        case["values_excl_last"].astype(np.float64),
        case["last_value"],
        case["done"].astype(np.float64),
        case["truncation"],
        lambda_,
        gamma,
    )


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("gamma, lambda_", [(0.99, 0.95), (0.97, 0.9), (0.9, 0.9)])
def test_gae_is_within_half_a_unit_in_the_last_place_of_float64(gamma, lambda_, positive, jitted):
    case = _case(512, 100, 0.02, seed=1, positive=positive)

    def run(**arrays):
        return gae(**arrays, lambda_=lambda_, gamma=gamma)

    advantages = (jax.jit(run) if jitted else run)(**case)
    expected = _expected(case, lambda_, gamma)
    assert np.max(np.abs(expected)) < 16.0  # where half a unit is 4.8e-7
    assert np.max(np.abs(np.asarray(advantages, np.float64) - expected)) < 4.8e-7


def test_gae_accepts_traced_numbers_and_float_flags():
    case = _case(20, 3, 0.2, seed=2)
    case["done"] = case["done"].astype(np.float32)
    case["truncation"] = case["truncation"].astype(np.float32)

    @jax.jit
    def run(case, lambda_, gamma):
        return gae(**case, lambda_=lambda_, gamma=gamma)

    advantages = run(case, 0.9, 0.97)
    expected = _expected(case, float(np.float32(0.9)), float(np.float32(0.97)))
    np.testing.assert_allclose(advantages, expected, rtol=2e-7, atol=1e-6)


def test_nothing_is_carried_over_the_end_of_an_episode():
    case = _case(6, 1, 0.0, seed=3)
    case["done"][2] = True
    changed = {name: array.copy() for name, array in case.items()}
    changed["rewards"][3:] += 10.0
    before = gae(**case, lambda_=0.95, gamma=0.99)
    after = gae(**changed, lambda_=0.95, gamma=0.99)
    np.testing.assert_array_equal(before[:3], after[:3])
    assert float(before[2, 0]) == pytest.approx(
        float(case["rewards"][2, 0] - case["values_excl_last"][2, 0]), abs=1e-6
    )


def test_a_truncated_step_has_no_advantage():
    case = _case(6, 1, 0.0, seed=4)
    case["done"][2] = True
    case["truncation"][2] = True
    advantages = gae(**case, lambda_=0.95, gamma=0.99)
    assert float(advantages[2, 0]) == 0.0
    assert float(advantages[1, 0]) != 0.0


def test_no_gradient_flows_through_advantages():
    case = _case(5, 2, 0.2, seed=5)

    def total(values):
        return jp.sum(gae(**{**case, "values_excl_last": values}, lambda_=0.95, gamma=0.99))

    gradient = jax.grad(total)(jp.asarray(case["values_excl_last"]))
    np.testing.assert_array_equal(gradient, jp.zeros((5, 2)))
