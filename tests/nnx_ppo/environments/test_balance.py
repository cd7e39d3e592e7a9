import functools

import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.environments import Balance, SwingUpDelayed
from nnx_ppo.environments.reference_controllers import DelayedSwingUpController, episode_return

ENVIRONMENT = Balance()


def test_episodes_start_nearly_upright_with_readings_of_that() -> None:
    states = jax.jit(jax.vmap(ENVIRONMENT.reset))(jax.random.split(jax.random.key(0), 1000))
    largest = np.abs(np.asarray(states.mechanism)).max(axis=0)
    np.testing.assert_allclose(largest, [0.3, 0.25, 0.3, 0.3], rtol=0.02)
    expected = jax.jit(jax.vmap(ENVIRONMENT.observe))(states.mechanism)
    for reading in (states.obs, *np.moveaxis(np.asarray(states.pending), 1, 0)):
        np.testing.assert_array_equal(np.asarray(reading), np.asarray(expected))
    assert not np.asarray(states.done).any()


def test_an_episode_ends_where_the_pendulum_has_fallen_and_is_a_swing_up_until_then() -> None:
    start = jp.array([0.1, 0.2, 0.0, 0.3], jp.float32)
    step, other_step = jax.jit(ENVIRONMENT.step), jax.jit(SwingUpDelayed().step)
    state, other = ENVIRONMENT.start(start), SwingUpDelayed().start(start)
    for _ in range(200):
        state, other = step(state, jp.zeros(1)), other_step(other, jp.zeros(1))
        np.testing.assert_array_equal(np.asarray(state.obs), np.asarray(other.obs))
        assert float(state.reward) == float(other.reward)
        assert bool(state.done) == (abs(float(state.mechanism[1])) > 1.0)
        if state.done:
            break
    assert bool(state.done)


@pytest.mark.slow
def test_a_controller_that_remembers_solves_it() -> None:
    controller = DelayedSwingUpController(ENVIRONMENT)
    run = functools.partial(episode_return, ENVIRONMENT, controller, steps=1000)
    returns = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 64))
    assert float(jp.mean(returns)) >= ENVIRONMENT.solved_return
