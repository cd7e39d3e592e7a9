import dataclasses
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from nnx_ppo.environments import Balance, SwingUp, TwoArm
from nnx_ppo.environments.state import EnvironmentState
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper
from nnx_ppo.wrappers.gymnasium_view import GymnasiumView


def test_episodes_are_those_of_the_environment_with_the_seeds_key() -> None:
    environment = SwingUp()
    view = GymnasiumView(environment)
    state = jax.jit(environment.reset)(jax.random.key(7))
    observation, _ = view.reset(seed=7)
    np.testing.assert_array_equal(observation, np.asarray(state.obs))
    step = jax.jit(environment.step)
    for action in np.linspace(-1.0, 1.0, 10, dtype=np.float32)[:, None]:
        state = step(state, action)
        observation, reward, terminated, truncated, _ = view.step(action)
        np.testing.assert_array_equal(observation, np.asarray(state.obs))
        assert reward == float(state.reward)
        assert not terminated and not truncated


def test_an_episode_without_a_seed_is_another_one_each_time() -> None:
    view = GymnasiumView(SwingUp())
    view.reset(seed=1)
    first, second = view.reset()[0], view.reset()[0]
    assert np.abs(first - second).max() > 0.01
    view.reset(seed=1)
    np.testing.assert_array_equal(view.reset()[0], first)


def test_trees_become_spaces_and_rewards_are_added() -> None:
    environment = TwoArm()
    view = GymnasiumView(environment)
    assert isinstance(view.observation_space, spaces.Dict)
    assert view.observation_space["arm_L"]["target"].shape == (4,)
    assert sorted(view.action_space.spaces) == ["arm_L", "arm_R"]
    observation, _ = view.reset(seed=0)
    assert view.observation_space.contains(observation)
    action = {name: np.ones(2, np.float32) for name in ("arm_L", "arm_R")}
    assert view.action_space.contains(action)
    start = jax.jit(environment.reset)(jax.random.key(0))
    expected = jax.jit(environment.step)(start, action).reward
    reward = view.step(action)[1]
    assert reward == pytest.approx(float(expected["arm_L"]) + float(expected["arm_R"]), rel=1e-5)


def test_a_fall_terminates_and_the_time_limit_truncates() -> None:
    ends = {}
    for name, length in (("fall", 1000), ("time", 5)):
        view = GymnasiumView(Balance(), episode_length=length)
        view.reset(seed=0)
        terminated = truncated = False
        steps = 0
        while not (terminated or truncated):
            _, _, terminated, truncated, _ = view.step(np.ones(1, np.float32))
            steps += 1
        ends[name] = (terminated, truncated)
        assert (steps == 5) == (name == "time")
    assert ends == {"fall": (True, False), "time": (False, True)}


def test_an_environment_that_truncates_itself_is_understood() -> None:
    view = GymnasiumView(EpisodeWrapper(SwingUp(), 4, random_start=False))
    view.reset(seed=0)
    ends = [view.step(np.zeros(1, np.float32))[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


# What a sensor reports has no bounds that an environment in JAX would know.
@pytest.mark.filterwarnings("ignore:.*A Box observation space (min|max)imum value is -?infinity")
def test_gymnasiums_own_check_passes() -> None:
    check_env(GymnasiumView(Balance()), skip_render_check=True)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Observes more than floats."""

    action_size: int = 1

    def reset(self, rng: Any) -> EnvironmentState:
        obs = {"flags": jp.zeros(2, bool), "pair": (jp.zeros(3, jp.int32), jp.zeros(()))}
        zero = jp.zeros(())
        return EnvironmentState(obs, zero, zero, {}, {}, zero)

    def step(self, state: Any, action: Any) -> Any:
        return state


def test_booleans_integers_and_tuples_have_spaces() -> None:
    view = GymnasiumView(Mixed())
    space = view.observation_space
    assert isinstance(space, spaces.Dict)
    assert isinstance(space["flags"], spaces.MultiBinary)
    assert space["pair"][0].dtype == np.int32
    assert view.episode_length is None


def test_misuse_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no episode has begun"):
        GymnasiumView(SwingUp()).step(np.zeros(1, np.float32))

    class Sizeless:
        def reset(self, rng: Any) -> Any: ...
        def step(self, state: Any, action: Any) -> Any: ...

    with pytest.raises(TypeError, match="Sizeless has no action_size"):
        GymnasiumView(Sizeless())
