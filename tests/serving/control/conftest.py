from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_doubles import Clock, Rig, Robot

from serving import load_policy


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def robot(clock: Clock) -> Robot:
    return Robot(clock)


@pytest.fixture
def observations(leaky: Any) -> Callable[[int], list[Any]]:
    """Observations of the leaky policy for one robot."""

    def make(count: int) -> list[Any]:
        rng = np.random.default_rng(0)
        return [leaky.tree(leaky.observe(rng, 1), row=0) for _ in range(count)]

    return make


@pytest.fixture
def make_rig(bundle_path: Path, clock: Clock) -> Callable[[list[Any]], Rig]:
    policy = load_policy(bundle_path)
    return lambda observations: Rig(policy.session(), clock, observations)
