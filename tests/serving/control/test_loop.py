import json
import threading
import time

import numpy as np
import pytest
from loop_doubles import Doubler

from serving import ControlLoop, LoopError, ObservationError, load_policy


def make_loop(clock, robot, rate_hz: float | None = 50.0, **change) -> ControlLoop:
    parts = {"session": Doubler(clock), "read": robot.read, "apply": robot.apply, **change}
    return ControlLoop(**parts, rate_hz=rate_hz, clock=clock, sleep=clock.sleep)


def test_cycles_begin_on_a_grid_and_pass_on_the_actions(clock, robot):
    report = make_loop(clock, robot).run(steps=5)
    assert robot.read_at_s == pytest.approx([1000.0, 1000.02, 1000.04, 1000.06, 1000.08])
    assert robot.applied == [2, 4, 6, 8, 10]
    assert (report.steps, report.misses, report.overruns) == (5, 0, 0)
    assert report.stopped_by == "steps"
    assert report.achieved_rate_hz == pytest.approx(50.0)
    assert report.step_latency.median_s == pytest.approx(0.002, rel=0.01)
    assert report.cycle.max_s == pytest.approx(0.004)
    assert report.lateness.max_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("duration_s", "steps"), [(0.1, 5), (0.11, 6), (0.001, 1), (60.0, 3000)])
def test_a_duration_runs_the_cycles_due_within_it(clock, robot, duration_s, steps):
    report = make_loop(clock, robot).run(duration_s=duration_s)
    assert (report.steps, report.stopped_by) == (steps, "duration")


def test_the_first_limit_ends_the_run(clock, robot):
    assert make_loop(clock, robot).run(duration_s=1.0, steps=3).stopped_by == "steps"
    assert make_loop(clock, robot).run(duration_s=0.03, steps=9).stopped_by == "duration"


def test_a_stall_skips_ticks_and_never_bursts(clock, robot):
    robot.stalls = {2: 0.05}
    report = make_loop(clock, robot).run(steps=6)
    # The cycle due at 0.04 ends at 0.094, so the ones due at 0.06 and 0.08 are left out.
    assert robot.read_at_s == pytest.approx([1000.0, 1000.02, 1000.04, 1000.10, 1000.12, 1000.14])
    assert (report.misses, report.overruns) == (2, 1)
    assert report.cycle.max_s == pytest.approx(0.054)
    assert min(np.diff(robot.read_at_s)) > 0.02 - 1e-9


def test_work_longer_than_a_period_runs_at_every_other_tick(clock, robot):
    robot.read_s = 0.022
    report = make_loop(clock, robot).run(duration_s=1.0)
    assert (report.steps, report.misses, report.overruns) == (25, 25, 25)
    assert report.achieved_rate_hz == pytest.approx(25.0)
    assert np.diff(robot.read_at_s) == pytest.approx([0.04] * 24)


def test_late_waking_is_measured_and_does_not_shift_the_grid(clock, robot):
    def oversleep(duration_s: float) -> None:
        clock.now_s += duration_s + 0.003

    loop = ControlLoop(
        Doubler(clock), robot.read, robot.apply, rate_hz=50.0, clock=clock, sleep=oversleep
    )
    report = loop.run(steps=100)
    assert robot.read_at_s[1:] == pytest.approx([1000.003 + 0.02 * k for k in range(1, 100)])
    assert report.misses == 0
    assert report.lateness.median_s == pytest.approx(0.003, rel=0.01)
    assert report.lateness.max_s == pytest.approx(0.003)


def test_a_sleep_that_returns_early_is_continued(clock, robot):
    def doze(duration_s: float) -> None:
        clock.sleep(min(duration_s, 0.001))

    loop = ControlLoop(
        Doubler(clock), robot.read, robot.apply, rate_hz=50.0, clock=clock, sleep=doze
    )
    loop.run(steps=3)
    assert robot.read_at_s == pytest.approx([1000.0, 1000.02, 1000.04])


@pytest.mark.parametrize("phase", ["read", "the policy", "apply"])
def test_a_failure_ends_the_run_and_reports_what_was_done(clock, robot, monkeypatch, phase):
    calls = 0

    def failing(function):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == 4:
                raise ValueError("cable unplugged")
            return function(*arguments)

        return call

    session = Doubler(clock)
    if phase == "the policy":
        monkeypatch.setattr(session, "step", failing(session.step))
    read = failing(robot.read) if phase == "read" else robot.read
    apply = failing(robot.apply) if phase == "apply" else robot.apply
    loop = make_loop(clock, robot, session=session, read=read, apply=apply)
    message = f"{phase} failed after 3 steps: ValueError: cable unplugged"
    with pytest.raises(LoopError, match=message) as raised:
        loop.run(steps=10)
    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.report.steps == 3 and raised.value.report.stopped_by == "error"
    assert loop.report is raised.value.report
    assert robot.applied == [2, 4, 6]
    calls = 100
    assert loop.run(steps=2).steps == 2


def test_an_interrupt_passes_through_and_leaves_a_report(clock, robot):
    def interrupted(action):
        robot.apply(action)
        if len(robot.applied) == 3:
            raise KeyboardInterrupt

    loop = make_loop(clock, robot, apply=interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert loop.report is not None
    assert loop.report.stopped_by == "interrupt" and loop.report.steps == 2


def test_stop_ends_the_run_after_the_cycle_in_progress(clock, robot):
    def apply(action):
        robot.apply(action)
        if len(robot.applied) == 4:
            loop.stop()

    loop = make_loop(clock, robot, apply=apply)
    assert loop.report is None
    report = loop.run()
    assert (report.steps, report.stopped_by, robot.applied) == (4, "stop", [2, 4, 6, 8])
    assert loop.report is report


def test_a_loop_does_not_run_twice_at_once(clock, robot):
    errors: list[str] = []

    def read():
        with pytest.raises(LoopError) as raised:
            loop.run(steps=1)
        errors.append(str(raised.value))
        return robot.read()

    loop = make_loop(clock, robot, read=read)
    loop.run(steps=1)
    assert len(errors) == 1 and "running already" in errors[0]


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(clock, robot, rate_hz):
    with pytest.raises(LoopError, match="rate_hz is .*, expected a positive number"):
        make_loop(clock, robot, rate_hz=rate_hz)


def test_limits_that_are_none_are_refused(clock, robot):
    loop = make_loop(clock, robot)
    for duration_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LoopError, match="duration_s is"):
            loop.run(duration_s=duration_s)
    with pytest.raises(LoopError, match="steps is 0"):
        loop.run(steps=0)
    assert robot.applied == []


def test_the_report_is_json(clock, robot):
    report = make_loop(clock, robot).run(steps=3)
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert values["steps"] == 3 and values["step_latency"]["count"] == 3
    assert make_loop(clock, robot).run(steps=1).achieved_rate_hz == 0.0


def test_the_rate_of_the_bundle_is_the_default_and_another_one_is_warned_of(
    bundle_path, leaky, clock, robot
):
    session = load_policy(bundle_path).session()
    assert ControlLoop(session, robot.read, robot.apply).rate_hz == 50.0
    with pytest.warns(RuntimeWarning, match="runs at 40.0 Hz, the policy was made for 50.0 Hz"):
        ControlLoop(session, robot.read, robot.apply, rate_hz=40.0)
    with pytest.raises(LoopError, match="rate_hz has to be given"):
        make_loop(clock, robot, rate_hz=None)


def test_a_bad_observation_ends_the_run_with_the_carry_of_the_last_good_step(bundle_path, leaky):
    session = load_policy(bundle_path).session()
    rng = np.random.default_rng(0)
    observations = [leaky.tree(leaky.observe(rng, 1), row=0) for _ in range(5)]
    observations[3]["arm"]["position"][1] = np.nan
    stream = iter(observations)
    carries = []

    def apply(action):
        carries.append(session.carry["carry.hidden"])

    with pytest.warns(RuntimeWarning):
        loop = ControlLoop(session, lambda: next(stream), apply, rate_hz=1000.0)
    with pytest.raises(LoopError, match="the policy failed after 3 steps: ObservationError") as r:
        loop.run()
    assert isinstance(r.value.__cause__, ObservationError)
    assert np.array_equal(session.carry["carry.hidden"], carries[-1]) and session.steps == 3


def test_subnormal_numbers_are_flushed_during_the_run_only(clock, robot):
    def product() -> float:
        return float(np.float32(1e-38) * np.float32(0.1))

    seen = []
    loop = make_loop(clock, robot, apply=lambda action: seen.append(product()))
    report = loop.run(steps=1)
    assert (seen[0] == 0.0) == report.denormals_flushed
    assert product() > 0.0


def test_a_real_loop_keeps_its_rate(bundle_path, leaky):
    session = load_policy(bundle_path).session()
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 1), row=0)
    began: list[float] = []

    def read():
        began.append(time.perf_counter())
        return observation

    report = ControlLoop(session, read, lambda action: None, rate_hz=50.0).run(duration_s=1.0)
    # A loaded machine skips ticks and comes late, but makes up for nothing.
    assert report.steps + report.misses == pytest.approx(50, abs=1)
    late_s = 1.1 * report.lateness.max_s + 1e-3  # of the first one, at most
    assert began[-1] - began[0] >= 0.02 * (report.steps - 1) - late_s
    assert report.step_latency.count == report.steps == session.steps


def test_stop_from_another_thread_ends_a_run_without_limits(bundle_path, leaky):
    session = load_policy(bundle_path).session()
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 1), row=0)
    loop = ControlLoop(session, lambda: observation, lambda action: None)
    timer = threading.Timer(0.2, loop.stop)
    timer.start()
    report = loop.run()
    timer.join()
    assert report.stopped_by == "stop" and report.elapsed_s < 30.0
