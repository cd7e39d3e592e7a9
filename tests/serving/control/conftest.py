from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loop_doubles import Clock, Robot


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
