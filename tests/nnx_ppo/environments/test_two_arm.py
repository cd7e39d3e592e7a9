import functools

import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.environments import TwoArm
from nnx_ppo.environments.reference_controllers import TwoArmController, episode_return

ENVIRONMENT = TwoArm()
reset, step = jax.jit(ENVIRONMENT.reset), jax.jit(ENVIRONMENT.step)
NO_ACTION = {"arm_L": jp.zeros(2), "arm_R": jp.zeros(2)}
FULL_REWARD = 0.1


def test_trees_have_the_promised_widths() -> None:
    state = reset(jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.shape[0], state.obs) == ENVIRONMENT.observation_size
    assert jax.tree.map(lambda leaf: leaf.shape[0], NO_ACTION) == ENVIRONMENT.action_size
    assert sorted(state.reward) == sorted(ENVIRONMENT.action_size)
    after = step(state, NO_ACTION)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)] == [
        (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)
    ]


def test_the_target_is_the_bars_end_as_seen_from_the_hand() -> None:
    state = reset(jax.random.key(1))
    centre = 0.2 * np.asarray(state.obs["root"]["bar"][:2]) + [0.0, -0.3]
    sine, cosine = np.asarray(state.obs["root"]["bar"][2:4])
    for name, side in (("arm_L", -1.0), ("arm_R", 1.0)):
        shoulder, elbow = np.asarray(state.mechanism[name][:2], np.float64)
        hand = 0.25 * np.array(
            [
                np.sin(shoulder) + np.sin(shoulder + elbow),
                -np.cos(shoulder) - np.cos(shoulder + elbow),
            ]
        ) + [0.2 * side, 0.0]
        end = centre + 0.2 * side * np.array([cosine, sine])
        offset = 0.2 * np.asarray(state.obs[name]["target"][:2])
        np.testing.assert_allclose(offset, end - hand, atol=1e-5)


def test_the_bar_moves_as_its_velocity_says_and_keeps_its_length() -> None:
    state = reset(jax.random.key(2))
    after = step(state, NO_ACTION)
    ends, velocities = ENVIRONMENT.bar_ends(state.mechanism)
    next_ends, next_velocities = ENVIRONMENT.bar_ends(after.mechanism)
    for name in ("arm_L", "arm_R"):
        mean_velocity = 0.5 * (velocities[name] + next_velocities[name])
        moved = np.asarray(next_ends[name] - ends[name])
        np.testing.assert_allclose(moved, 0.02 * np.asarray(mean_velocity), atol=1e-5)
    assert float(jp.linalg.norm(ends["arm_R"] - ends["arm_L"])) == pytest.approx(0.4, rel=1e-5)


def test_an_arm_earns_more_while_the_other_holds_on() -> None:
    after = step(reset(jax.random.key(3)), NO_ACTION)
    near = {
        name: 1.0 / (1.0 + (float(distance) / 0.05) ** 2)
        for name, distance in after.metrics["distance_m"].items()
    }
    for name, other in (("arm_L", "arm_R"), ("arm_R", "arm_L")):
        expected = FULL_REWARD * near[name] * (1.0 + near[other]) / 2.0
        assert float(after.reward[name]) == pytest.approx(expected, rel=1e-4)


def test_arms_move_by_their_own_actions_only() -> None:
    state = reset(jax.random.key(4))
    resting = step(state, NO_ACTION)
    left = step(state, {**NO_ACTION, "arm_L": jp.array([1.0, -1.0])})
    right_angles = [np.asarray(s.mechanism["arm_R"]) for s in (left, resting)]
    np.testing.assert_allclose(right_angles[0], right_angles[1], rtol=1e-5)
    assert float(left.mechanism["arm_L"][2] - resting.mechanism["arm_L"][2]) > 0.5


def test_actions_beyond_one_are_clipped() -> None:
    state = reset(jax.random.key(5))
    full = step(state, {name: jp.ones(2) for name in NO_ACTION})
    more = step(state, {name: jp.full(2, 9.0) for name in NO_ACTION})
    np.testing.assert_array_equal(
        np.asarray(full.mechanism["arm_L"]), np.asarray(more.mechanism["arm_L"])
    )


def test_episodes_differ_in_arms_and_bar() -> None:
    keys = jax.random.split(jax.random.key(6), 512)
    mechanism = jax.vmap(ENVIRONMENT.reset)(keys).mechanism
    frequencies = np.asarray(mechanism["bar_frequencies"])
    assert 1.0 <= frequencies.min() < 1.1 < 1.9 < frequencies.max() <= 2.0
    assert np.std(np.asarray(mechanism["bar_phases"])) == pytest.approx(np.pi / 3**0.5, rel=0.05)
    for name, side in (("arm_L", -1.0), ("arm_R", 1.0)):
        arm = np.asarray(mechanism[name])
        np.testing.assert_allclose(arm.mean(0), [0.3 * side, -0.6 * side, 0.0, 0.0], atol=0.05)
        np.testing.assert_allclose(arm.std(0), 0.2, rtol=0.1)


def test_a_model_based_controller_solves_it() -> None:
    run = functools.partial(episode_return, ENVIRONMENT, TwoArmController(ENVIRONMENT), steps=500)
    returns = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 64))
    assert float(jp.mean(returns)) >= ENVIRONMENT.solved_return
    assert float(jp.max(returns)) <= 2 * FULL_REWARD * ENVIRONMENT.episode_length


def test_hanging_arms_earn_little() -> None:
    def run(key: jax.Array) -> jax.Array:
        rest = lambda state, _: (ENVIRONMENT.step(state, NO_ACTION), state.reward)  # noqa: E731
        rewards = jax.lax.scan(rest, ENVIRONMENT.reset(key), length=500)[1]
        return sum(map(jp.sum, rewards.values()))

    returns = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 32))
    assert float(jp.mean(returns)) < 0.1 * ENVIRONMENT.solved_return


def test_other_actions_are_refused() -> None:
    state = reset(jax.random.key(0))
    with pytest.raises(ValueError, match="expected actions for .*arm_R.*got .*arm_X"):
        ENVIRONMENT.step(state, {"arm_L": jp.zeros(2), "arm_X": jp.zeros(2)})
