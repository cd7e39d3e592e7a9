import functools

import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.environments import SwingUp, SwingUpDelayed
from nnx_ppo.environments.reference_controllers import (
    DelayedSwingUpController,
    SwingUpController,
    episode_return,
)

ENVIRONMENT = SwingUpDelayed()


@pytest.mark.parametrize("delay_steps", [1, 3, 5])
def test_readings_are_exactly_as_old_as_promised(delay_steps: int) -> None:
    late, present = SwingUpDelayed(delay_steps=delay_steps), SwingUp()
    actions = jax.random.uniform(jax.random.key(1), (20, 1), minval=-1.0, maxval=1.0)

    @functools.partial(jax.jit, static_argnums=0)
    def observations(env) -> jax.Array:
        def step(state, action):
            state = env.step(state, action)
            return state, state.obs

        start = env.reset(jax.random.key(0))
        return jp.concatenate([start.obs[None], jax.lax.scan(step, start, actions)[1]])

    seen, true = np.asarray(observations(late)), np.asarray(observations(present))[:, :4]
    for step in range(len(seen)):
        np.testing.assert_array_equal(seen[step], true[max(step - delay_steps, 0)])


def test_reward_is_that_of_the_present() -> None:
    actions = jp.linspace(-1.0, 1.0, 10)[:, None]

    def rewards(env) -> jax.Array:
        def step(state, action):
            state = env.step(state, action)
            return state, state.reward

        return jax.lax.scan(step, env.reset(jax.random.key(4)), actions)[1]

    np.testing.assert_array_equal(np.asarray(rewards(ENVIRONMENT)), np.asarray(rewards(SwingUp())))


def test_speeds_are_hidden() -> None:
    slow = ENVIRONMENT.observe(jp.array([0.1, 0.2, 0.0, 0.0], jp.float32))
    fast = ENVIRONMENT.observe(jp.array([0.1, 0.2, 9.0, -9.0], jp.float32))
    np.testing.assert_array_equal(np.asarray(slow), np.asarray(fast))
    assert slow.shape == (ENVIRONMENT.observation_size,)


def test_a_controller_that_remembers_solves_it() -> None:
    controller = DelayedSwingUpController(ENVIRONMENT)
    run = functools.partial(episode_return, ENVIRONMENT, controller, steps=1000)
    returns = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 256))
    assert float(jp.mean(returns)) >= ENVIRONMENT.solved_return


@functools.cache
def linearized_upright() -> tuple[np.ndarray, np.ndarray]:
    """Effect of a small state, and of a small action, on the next state near upright."""
    transition, steering = jax.jit(jax.jacobian(ENVIRONMENT.advance, argnums=(0, 1)))(
        jp.zeros(4, jp.float32), jp.zeros(1, jp.float32)
    )
    return np.asarray(transition, np.float64), np.asarray(steering, np.float64)


def spectral_radius(gains: np.ndarray, *, delay_steps: int) -> float:
    """Growth per step near upright where the torque is ``-gains @ angles`` of some steps ago."""
    transition, steering = linearized_upright()
    size = 4 + 2 * delay_steps
    loop = np.zeros((size, size))
    loop[:4, :4] = transition
    seen = slice(0, 2) if delay_steps == 0 else slice(size - 2, size)
    loop[:4, seen] -= steering @ gains[None, :]
    if delay_steps > 0:
        loop[4:6, :2] = np.eye(2)
        loop[6:, 4:-2] = np.eye(2 * (delay_steps - 1))
    return float(np.max(np.abs(np.linalg.eigvals(loop))))


@pytest.mark.parametrize("delay_steps", [0, 3])
def test_no_linear_feedback_of_one_observation_balances(delay_steps: int) -> None:
    radii = [
        spectral_radius(np.array([arm, pendulum]), delay_steps=delay_steps)
        for arm in np.linspace(-20.0, 20.0, 41)
        for pendulum in np.linspace(-40.0, 40.0, 41)
    ]
    # The slowest growth that any gain leaves: speeds are what is missing, and age makes it worse.
    assert min(radii) > 1.0
    assert spectral_radius(np.zeros(2), delay_steps=delay_steps) > 1.1


def test_feedback_of_speeds_balances() -> None:
    gain = np.asarray(SwingUpController(SwingUp()).gain, np.float64)
    transition, steering = linearized_upright()
    assert np.max(np.abs(np.linalg.eigvals(transition - steering @ gain))) < 1.0


def test_a_reset_empties_what_is_on_its_way() -> None:
    state = ENVIRONMENT.reset(jax.random.key(7))
    np.testing.assert_array_equal(
        np.asarray(state.pending), np.tile(np.asarray(state.obs), (ENVIRONMENT.delay_steps, 1))
    )


def test_steps_keep_structure_and_types() -> None:
    state = ENVIRONMENT.reset(jax.random.key(0))
    after = jax.jit(ENVIRONMENT.step)(state, jp.zeros(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [leaf.shape for leaf in jax.tree.leaves(after)] == [
        leaf.shape for leaf in jax.tree.leaves(state)
    ]


def test_a_delay_below_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="delay_steps=0.*use SwingUp"):
        SwingUpDelayed(delay_steps=0)
