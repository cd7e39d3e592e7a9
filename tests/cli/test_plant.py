"""The environment behind `nnx-ppo simulate` and the demo's control loop."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from nnx_ppo.cli.plant import EnvironmentPlant
from nnx_ppo.cli.simulate import resting_action
from nnx_ppo.environments import make_environment


@pytest.mark.parametrize("name", ["swing_up", "swing_up_delayed", "two_arm"])
def test_nothing_compiles_once_the_plant_is_compiled(name):
    environment = make_environment(name)
    plant = EnvironmentPlant(environment, seed=3, episode_length=3)
    action = resting_action(environment)
    plant.compile(action)

    compiled: list[str] = []
    listening = True

    def listen(event: str, _seconds: float, **_: object) -> None:
        if listening and "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(2):
            plant.reset()
            for _ in range(3):
                _, _, ended = plant.step(action)
            assert ended
    finally:
        listening = False
    assert compiled == []


def test_compiling_leaves_the_episodes_as_they_are():
    environment = make_environment("swing_up_delayed")
    action = resting_action(environment)
    observations = []
    for compiles in (False, True):
        plant = EnvironmentPlant(environment, seed=5, episode_length=None)
        if compiles:
            plant.compile(action)
        first = plant.reset()
        second, reward, ended = plant.step(action)
        assert not ended
        observations.append(np.concatenate([first, second, [reward]]))
    np.testing.assert_array_equal(*observations)
