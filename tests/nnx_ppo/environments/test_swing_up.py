import functools

import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.environments import SwingUp
from nnx_ppo.environments.reference_controllers import SwingUpController, episode_return
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

ENVIRONMENT = SwingUp()
reset, step = jax.jit(ENVIRONMENT.reset), jax.jit(ENVIRONMENT.step)
FULL_REWARD = 0.1


def state_at(arm: float, pendulum: float, arm_speed: float, speed: float):
    mechanism = jp.array([arm, pendulum, arm_speed, speed], jp.float32)
    state = reset(jax.random.key(0))
    return state.replace(mechanism=mechanism, obs=ENVIRONMENT.observe(mechanism))


def test_episodes_start_slowly_at_any_angle() -> None:
    keys = jax.random.split(jax.random.key(0), 4096)
    states = jax.vmap(ENVIRONMENT.reset)(keys)
    arm, pendulum, arm_speed, speed = np.asarray(states.mechanism).T
    quarters, _ = np.histogram(pendulum, bins=4, range=(-np.pi, np.pi))
    assert np.all(np.abs(quarters / 4096 - 0.25) < 0.03)
    for values in (arm, arm_speed, speed):
        assert np.max(np.abs(values)) <= 0.5
        assert np.std(values) == pytest.approx(0.5 / np.sqrt(3.0), rel=0.05)
    assert float(jp.sum(states.reward)) == 0.0
    assert float(jp.sum(states.done)) == 0.0


def test_the_observation_is_angles_on_the_circle_and_speeds() -> None:
    obs = np.asarray(state_at(0.5, 3.0, 2.0, -4.0).obs)
    expected = [np.sin(0.5), np.cos(0.5), np.sin(3.0), np.cos(3.0), 0.2, -0.4]
    np.testing.assert_allclose(obs, expected, atol=1e-6)
    assert obs.shape == (ENVIRONMENT.observation_size,)


def test_a_step_lasts_ten_milliseconds() -> None:
    falling = state_at(0.0, np.pi / 2, 0.0, 0.0)
    after = step(falling, jp.zeros(1))
    acceleration = ENVIRONMENT.pendulum.derivative(falling.mechanism, jp.float32(0.0))[3]
    assert float(after.mechanism[3]) == pytest.approx(0.01 * float(acceleration), rel=1e-2)


def test_actions_beyond_one_are_clipped() -> None:
    state = reset(jax.random.key(1))
    for action in (1.0, -1.0):
        full = step(state, jp.array([action]))
        more = step(state, jp.array([5.0 * action]))
        np.testing.assert_array_equal(np.asarray(full.obs), np.asarray(more.obs))


def test_reward_is_full_where_everything_stands_upright_and_centred() -> None:
    resting = step(state_at(0.0, 0.0, 0.0, 0.0), jp.zeros(1))
    assert float(resting.reward) == pytest.approx(FULL_REWARD, rel=1e-6)
    hanging = step(state_at(0.0, np.pi, 0.0, 0.0), jp.zeros(1))
    assert float(hanging.reward) == pytest.approx(0.0, abs=1e-6)


def test_reward_is_the_product_of_its_terms() -> None:
    after = step(state_at(1.0, 0.4, 3.0, -2.0), jp.array([0.5]))
    arm, pendulum, arm_speed, speed = np.asarray(after.mechanism, np.float64)
    upright = ((1.0 + np.cos(pendulum)) / 2.0) ** 2
    still = 1.0 / (1.0 + (arm_speed / 8.0) ** 2 + (speed / 5.0) ** 2)
    centred = (3.0 + np.cos(arm)) / 4.0
    assert float(after.reward) == pytest.approx(FULL_REWARD * upright * still * centred, rel=1e-5)
    assert float(after.metrics["upright"]) == pytest.approx(upright, rel=1e-5)
    assert float(after.metrics["still"]) == pytest.approx(still, rel=1e-5)
    assert float(after.metrics["centred"]) == pytest.approx(centred, rel=1e-5)


def test_a_model_based_controller_solves_it() -> None:
    controller = SwingUpController(ENVIRONMENT)
    run = functools.partial(episode_return, ENVIRONMENT, controller, steps=1000)
    returns = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 256))
    assert float(jp.mean(returns)) >= ENVIRONMENT.solved_return
    assert float(jp.max(returns)) <= ENVIRONMENT.episode_length * FULL_REWARD


@pytest.mark.parametrize("torque", ["none", "random"])
def test_acting_without_looking_earns_little(torque: str) -> None:
    def act(state, key: jax.Array):
        noise = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        state = ENVIRONMENT.step(state, noise if torque == "random" else jp.zeros(1))
        return state, state.reward

    def run(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 1000)
        return jp.sum(jax.lax.scan(act, ENVIRONMENT.reset(key), keys)[1])

    returns = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 32))
    assert float(jp.mean(returns)) < 0.1 * ENVIRONMENT.solved_return


def test_a_batch_behaves_like_single_environments() -> None:
    keys = jax.random.split(jax.random.key(3), 4)
    actions = jp.linspace(-1.0, 1.0, 4)[:, None]
    batch = jax.jit(jax.vmap(lambda key, a: ENVIRONMENT.step(ENVIRONMENT.reset(key), a)))(
        keys, actions
    )
    for index in range(4):
        single = step(reset(keys[index]), actions[index])
        np.testing.assert_allclose(
            np.asarray(batch.obs[index]), np.asarray(single.obs), rtol=1e-5, atol=1e-5
        )


def test_numpy_actions_are_taken_too() -> None:
    state = reset(jax.random.key(0))
    after = step(state, np.array([0.3], np.float32))
    same = step(state, jp.array([0.3]))
    np.testing.assert_array_equal(np.asarray(after.obs), np.asarray(same.obs))


def test_steps_keep_structure_and_types() -> None:
    env = EpisodeWrapper(ENVIRONMENT, ENVIRONMENT.episode_length)
    state = env.reset(jax.random.key(0))
    after = env.step(state, jp.zeros(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    before_types = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)] == before_types
    assert after.obs.dtype == jp.float32


def test_it_never_ends_by_itself_and_stays_finite() -> None:
    def run(action: jax.Array):
        push = lambda state, _: (ENVIRONMENT.step(state, action), state.done)  # noqa: E731
        return jax.lax.scan(push, ENVIRONMENT.reset(jax.random.key(0)), length=5000)

    # A constant torque brings the arm to its largest speed.
    final, done = jax.jit(run)(jp.ones(1))
    assert float(jp.sum(done)) == 0.0
    assert bool(jp.all(jp.isfinite(final.mechanism)))
    pendulum = ENVIRONMENT.pendulum
    assert abs(float(final.mechanism[2])) < 1.1 * pendulum.max_torque_nm / pendulum.arm_friction_nms
