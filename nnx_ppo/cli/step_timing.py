"""Times of steps of several contenders, interleaved, so that what else the machine does meets all.

Back to back each contender does a run of steps when it is its turn, in another order each time: a
contender in between would leave it cold caches, which is not what back to back means. Paced, each
tick is one contender's: it wakes after a pause and makes one step, as a robot does.
"""

import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

UNCOUNTED_STEPS = 5
"""Steps at the start of a run, which bring into the caches what the others displaced."""
COUNTED_STEPS = 25
"""Steps of a run that are timed."""


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """What steps took."""

    wall_s: np.ndarray
    """Seconds, `[steps]` float64."""
    cpu_s: float
    """Processor time of a step in seconds, of all threads of the process, on average."""


def back_to_back(
    steppers: Mapping[str, Callable[[Any], Any]], observations: Sequence[Any], steps: int
) -> dict[str, StepTimes]:
    """Time steps made one after the other.

    Args:
        steppers: Functions that take an observation, by name.
        observations: Used over and over.
        steps: Timed steps of each.
    """
    clock, processor = time.perf_counter, time.process_time
    times = {name: np.zeros(steps) for name in steppers}
    cpu_s = dict.fromkeys(steppers, 0.0)
    order = list(steppers.items())
    shuffled = random.Random(0)
    for start in range(0, steps, COUNTED_STEPS):
        # Else one would always come after the same other.
        shuffled.shuffle(order)
        stop = min(start + COUNTED_STEPS, steps)
        for name, step in order:
            for index in range(start, start + UNCOUNTED_STEPS):
                step(observations[index % len(observations)])
            used = processor()
            for index in range(start, stop):
                observation = observations[index % len(observations)]
                before = clock()
                step(observation)
                times[name][index] = clock() - before
            cpu_s[name] += processor() - used
    return {name: StepTimes(times[name], cpu_s[name] / steps) for name in steppers}


def paced(
    steppers: Mapping[str, Callable[[Any], Any]],
    observations: Sequence[Any],
    steps: int,
    rate_hz: float,
    *,
    other_work: Callable[[], object] = lambda: None,
) -> dict[str, StepTimes]:
    """Time steps that are made one at a time, each after a pause.

    Blocks for as many periods as all contenders make steps.

    Args:
        steppers: Functions that take an observation, by name.
        observations: Used over and over.
        steps: Timed steps of each.
        rate_hz: Ticks per second, of which each contender gets its share.
        other_work: Done at the end of each pause.
    """
    clock, processor = time.perf_counter, time.process_time
    times = {name: np.zeros(steps) for name in steppers}
    cpu_s = dict.fromkeys(steppers, 0.0)
    order = list(steppers.items())
    shuffled = random.Random(0)
    due = clock()
    for index in range(steps):
        observation = observations[index % len(observations)]
        shuffled.shuffle(order)
        for name, step in order:
            due = max(due + 1.0 / rate_hz, clock())
            time.sleep(max(0.0, due - clock()))
            other_work()
            used = processor()
            before = clock()
            step(observation)
            after = clock()
            cpu_s[name] += processor() - used
            times[name][index] = after - before
    return {name: StepTimes(times[name], cpu_s[name] / steps) for name in steppers}
