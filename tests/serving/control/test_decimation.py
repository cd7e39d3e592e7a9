"""Actions at a higher rate than the policy acts, and stalls at 500 Hz."""

import numpy as np
import pytest
from loop_doubles import Clock, Robot

from serving import ActionGuard, ControlLoop, LoopError, load_policy


class Ramp:
    """A session whose nth action is 10 n."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.steps = 0

    def step(self, observation: int) -> float:
        self.clock.now_s += 0.0001
        self.steps += 1
        return 10.0 * self.steps


def make_loop(clock: Clock, robot: Robot, **change) -> ControlLoop:
    robot.read_s = robot.apply_s = 0.0002
    parts = {"rate_hz": 500.0, "policy_every": 5, **change}
    return ControlLoop(
        Ramp(clock), robot.read, robot.apply, **parts, clock=clock, sleep=clock.sleep
    )


def test_between_two_steps_of_the_policy_its_action_is_held(clock, robot):
    report = make_loop(clock, robot).run(steps=12)
    assert robot.applied == [10.0] * 5 + [20.0] * 5 + [30.0] * 2
    assert (report.steps, report.policy_steps, len(robot.read_at_s)) == (12, 3, 3)
    assert np.diff(robot.read_at_s) == pytest.approx([0.01, 0.01])
    assert report.held == 0 and report.step_latency.count == 3


def test_or_approached_in_equal_steps_that_end_when_the_policy_acts_again(clock, robot):
    make_loop(clock, robot, between="interpolate").run(steps=12)
    expected = [10.0] * 5 + [12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0]
    assert robot.applied == pytest.approx(expected)


def test_a_rate_limit_goes_on_working_between_the_steps(clock, robot):
    guard = ActionGuard(rate_limit_per_s=1500.0)
    make_loop(clock, robot, actions=guard).run(steps=11)
    assert robot.applied == pytest.approx([10.0] * 5 + [13.0, 16.0, 19.0, 20.0, 20.0, 23.0])


def test_a_policy_whose_tick_was_skipped_acts_at_the_next_one(clock, robot):
    apply = robot.apply

    def stalling(action):
        apply(action)
        if len(robot.applied) == 4:
            clock.now_s += 0.005  # from tick 3 over ticks 4 and 5

    robot.apply = stalling
    report = make_loop(clock, robot, between="interpolate").run(steps=10)
    # Ticks 0-3, then 6-11: the policy acts at 6, late, and again at 10 as it should.
    assert robot.applied == pytest.approx([10.0] * 4 + [12.5, 15.0, 17.5, 20.0] + [22.0, 24.0])
    assert report.misses == 2 and report.policy_steps == 3


def test_the_rate_of_the_bundle_is_that_of_the_policy(bundle_path, leaky):
    session = load_policy(bundle_path).session()
    assert ControlLoop(session, int, print, policy_every=10).rate_hz == 500.0
    with pytest.warns(RuntimeWarning, match="runs at 25.0 Hz"):
        ControlLoop(session, int, print, policy_every=10, rate_hz=250.0)


def test_choices_that_are_none_are_refused(clock, robot, types_unchecked):
    for change, message in (
        ({"policy_every": 0}, "policy_every is 0"),
        ({"policy_every": 2.0}, "policy_every is 2.0"),
        ({"between": "jump"}, "between is 'jump', expected 'hold' or 'interpolate'"),
        ({"max_age_s": 0.0}, "max_age_s is 0.0"),
    ):
        with pytest.raises(LoopError, match=message):
            make_loop(clock, robot, **change)


def test_a_read_that_stalls_50_ms_every_second_causes_no_burst_at_500_hz(clock, robot):
    robot.stalls = {int(k): 0.05 for k in range(400, 4750, 475)}
    report = make_loop(clock, robot, policy_every=1).run(duration_s=10.0)
    began = np.array(robot.read_at_s)
    ticks = np.round((began - began[0]) * 500.0)
    # Every cycle begins on the grid, none twice, none early.
    np.testing.assert_allclose(began, began[0] + ticks / 500.0, atol=1e-9)
    assert np.diff(ticks).min() == 1.0
    stalled = np.flatnonzero(np.diff(ticks) > 1.0)
    assert len(stalled) == report.overruns == report.faults["overrun"] == 10
    # 50 ms and the work before and after them: 25 ticks are past, the 26th is the next one.
    assert np.diff(ticks)[stalled].tolist() == [26.0] * 10
    assert report.misses == 250 and report.steps + report.misses == 5000
    assert report.lateness.max_s < 1e-9 and report.jitter.max_s < 1e-9
    counts = report.histograms["cycle"].counts
    assert counts[-1] == 10 and sum(counts) == report.steps
