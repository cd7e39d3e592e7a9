from typing import NamedTuple

import jax
import jax.numpy as jp
import numpy as np
import pytest
from training_cases import CountingEnv, CountingNetwork, State

from nnx_ppo.algorithms.rollout import (
    SlimData,
    SlimState,
    eval_rollout_for_render_scan,
    unstack_trajectory,
)

pytestmark = pytest.mark.usefixtures("quick_compile")
KEY = jax.random.key(0)


def test_network_and_environment_start_over_together():
    stacked, final, reward = eval_rollout_for_render_scan(
        CountingEnv(5), CountingNetwork(), 12, KEY
    )
    # The reward is 1 only while the network's carry and the environment's count agree.
    rewards = np.asarray([state.data.reward for state in unstack_trajectory(stacked, final, 12)])
    np.testing.assert_array_equal(stacked.info["count"], [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])
    np.testing.assert_array_equal(rewards, [0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1])
    assert int(final.info["count"]) == 2
    assert float(reward) == 5.0


def test_a_trajectory_is_a_list_of_states_on_the_host():
    stacked, final, _ = eval_rollout_for_render_scan(CountingEnv(5), CountingNetwork(), 3, KEY)
    trajectory = unstack_trajectory(stacked, final, 3)
    assert [int(state.info["count"]) for state in trajectory] == [0, 1, 2, 3]
    assert isinstance(trajectory[0], SlimState)
    assert isinstance(trajectory[0].data, State)
    assert isinstance(trajectory[0].info["count"], np.ndarray | np.generic)


class Simulation(NamedTuple):
    qpos: jax.Array
    qvel: jax.Array
    time: jax.Array
    contacts: jax.Array


@jax.tree_util.register_pytree_node_class
class SimulatedState(State):
    data: Simulation

    def __init__(self, data, **fields):
        super().__init__(**fields)
        object.__setattr__(self, "data", data)

    def tree_flatten(self):
        return (self.data, self.obs, self.done, self.reward, self.info, self.metrics), None

    @classmethod
    def tree_unflatten(cls, _, children):
        instance = object.__new__(cls)
        names = ("data", "obs", "done", "reward", "info", "metrics")
        for name, child in zip(names, children, strict=True):
            object.__setattr__(instance, name, child)
        return instance


class SimulatedEnv(CountingEnv):
    """Keeps its state where MuJoCo environments do."""

    def reset(self, rng):
        return self._simulated(super().reset(rng))

    def step(self, state, action):
        fields = {name: getattr(state, name) for name in State.__dataclass_fields__}
        return self._simulated(super().step(State(**fields), action))

    def _simulated(self, state):
        position = state.obs * 2.0
        data = Simulation(position, position, position[0], jp.zeros((100, 3)))
        fields = {name: getattr(state, name) for name in State.__dataclass_fields__}
        return SimulatedState(data, **fields)


def test_of_a_simulation_only_what_rendering_needs_is_kept():
    stacked, final, _ = eval_rollout_for_render_scan(SimulatedEnv(5), CountingNetwork(), 4, KEY)
    assert isinstance(stacked.data, SlimData)
    np.testing.assert_array_equal(stacked.data.qpos[:, 0], [0.0, 2.0, 4.0, 6.0])
    assert float(final.data.time) == 8.0
    assert stacked.data.mocap_pos is None
