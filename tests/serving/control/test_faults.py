"""Faults by name: the carry stays intact, and the last action sent is the safe one."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loop_doubles import SAFE, Doubler, Rig, Robot, making_nan, too_wide, with_nan

from serving import (
    ActionError,
    ActionGuard,
    ControlLoop,
    FaultPolicy,
    LoopError,
    ObservationError,
    Stamped,
    StepError,
    load_policy,
)

FAULTS = {
    "nan_in_an_observation": (with_nan, "observation_invalid", ObservationError),
    "wrong_width_of_an_observation": (too_wide, "observation_invalid", ObservationError),
    "nan_made_by_the_policy": (making_nan, "action_invalid", ActionError),
    "read_raising": (lambda _: OSError("bus off"), "read_error", OSError),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_the_run_with_carry_intact_and_the_safe_action_last(
    name, make_rig, observations
):
    spoil, kind, error = FAULTS[name]
    stream = observations(5)
    stream[3] = spoil(stream[3])
    rig = make_rig(stream)
    with pytest.raises(LoopError, match="failed after 3 steps") as raised:
        rig.loop().run()
    assert isinstance(raised.value.__cause__, error)
    assert len(rig.applied) == 4 and rig.last_is_safe()
    assert rig.carry_is_that_of(2) and rig.session.steps == 3
    report = raised.value.report
    assert report.stopped_by == "error" and report.safe_action_sent is True
    assert report.faults[kind] == 1 and sum(report.faults.values()) == 1
    event = report.fault_events[0]
    assert (event.kind, event.reaction, event.tick) == (kind, "raise", 3)
    assert event.time_s == pytest.approx(0.061)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_held_goes_on_from_the_carry_before_it(name, make_rig, observations):
    spoil, kind, _ = FAULTS[name]
    stream = observations(5)
    rig = make_rig([*stream[:3], spoil(stream[3]), *stream[3:]])
    report = rig.loop(faults=FaultPolicy(**{kind: "hold"})).run(steps=6)
    undisturbed = make_rig(stream)
    undisturbed.loop().run(steps=5)
    assert (report.steps, report.policy_steps, report.held) == (6, 5, 1)
    assert np.array_equal(rig.applied[3]["joints"], rig.applied[2]["joints"])
    assert np.array_equal(rig.applied[4]["joints"], undisturbed.applied[3]["joints"])
    assert np.array_equal(rig.hidden(), undisturbed.hidden())
    assert rig.last_is_safe()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_can_be_answered_by_the_safe_action_or_by_stopping(name, make_rig, observations):
    spoil, kind, _ = FAULTS[name]
    stream = observations(5)
    stream[3] = spoil(stream[3])
    rig = make_rig(stream)
    report = rig.loop(faults=FaultPolicy(**{kind: "safe"})).run(steps=5)
    assert (report.safe, report.policy_steps, report.stopped_by) == (1, 4, "steps")
    assert not rig.applied[3]["joints"].any() and rig.applied[4]["joints"].any()
    rig = make_rig(stream)
    report = rig.loop(faults=FaultPolicy(**{kind: "stop"})).run()
    assert (report.stopped_by, len(rig.applied)) == ("fault", 4) and rig.last_is_safe()


def test_holding_too_long_becomes_the_safe_action_or_the_end(make_rig, observations):
    faults = FaultPolicy(read_error="hold", hold_limit_s=0.05)
    stream = [*observations(1), *[OSError("bus off")] * 9]
    rig = make_rig(stream)
    report = rig.loop(faults=faults).run(steps=8)
    # Held from 0.021 s on: at 0.02, 0.04 and 0.06 s, but not at 0.08 s.
    assert (report.held, report.safe, report.faults["read_error"]) == (3, 4, 7)
    rig = make_rig(stream)
    report = rig.loop(faults=faults, actions=ActionGuard()).run(steps=8)
    assert report.stopped_by == "fault" and report.safe_action_sent is None
    assert len(rig.applied) == 4


def test_a_fault_before_any_action_goes_to_the_safe_one(make_rig, observations):
    rig = make_rig([OSError("bus off"), *observations(1)])
    rig.loop(faults=FaultPolicy(read_error="hold")).run(steps=2)
    assert rig.applied[0]["gripper"] == -1.0 and rig.applied[1]["gripper"] != -1.0
    rig = make_rig([OSError("bus off"), *observations(1)])
    rig.loop(faults=FaultPolicy(read_error="hold"), actions=ActionGuard()).run(steps=2)
    assert len(rig.applied) == 1


def test_apply_raising_ends_the_run_and_the_safe_action_is_tried_once_more(make_rig, observations):
    rig = make_rig(observations(5))
    calls = 0

    def apply(action):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("bus off")
        rig.apply(action)

    with pytest.raises(LoopError, match="apply failed after 2 steps: OSError: bus off") as raised:
        rig.loop(apply=apply).run()
    assert rig.last_is_safe() and raised.value.report.safe_action_sent is True
    # The action that was lost had been computed: the carry has moved on with it.
    assert rig.session.steps == 3


def test_apply_that_goes_on_raising_is_said_in_the_report(make_rig, observations):
    def apply(action):
        raise OSError("bus off")

    rig = make_rig(observations(5))
    with pytest.raises(LoopError) as raised:
        rig.loop(apply=apply).run()
    assert raised.value.report.safe_action_sent is False
    assert raised.value.report.notes == ["the safe action could not be applied: OSError: bus off"]


@pytest.mark.parametrize("took_s", [0.0, 0.05], ids=["at once", "past the next tick"])
def test_apply_raising_can_be_answered_by_the_safe_action_in_the_next_cycle(clock, robot, took_s):
    def apply(action):
        robot.apply(action)
        if len(robot.applied) == 2:
            clock.now_s += took_s
            raise OSError("bus off")

    loop = ControlLoop(
        Doubler(clock),
        robot.read,
        apply,
        rate_hz=50.0,
        actions=ActionGuard(safe_action=-7),
        faults=FaultPolicy(apply_error="safe"),
        clock=clock,
        sleep=clock.sleep,
    )
    loop.run(steps=4)
    assert robot.applied == [2, 4, -7, 6, -7]


def test_the_runtime_failing_is_a_policy_error(make_rig, observations, monkeypatch):
    rig = make_rig(observations(5))

    def fail():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(rig.session._step, "run", fail)
    with pytest.raises(LoopError, match="the policy failed after 0 steps: StepError") as raised:
        rig.loop().run()
    assert isinstance(raised.value.__cause__, StepError)
    assert raised.value.report.faults["policy_error"] == 1 and rig.carry_is_that_of(-1)


def test_an_action_out_of_range_is_limited_counted_and_goes_on(make_rig, observations):
    rig = make_rig(observations(5))
    guard = ActionGuard(high=2.0, safe_action=SAFE)
    report = rig.loop(actions=guard).run(steps=5)
    free = make_rig(observations(5))
    free.loop().run(steps=5)
    beyond = [float(action["gripper"]) > 2.0 for action in free.applied[:5]]
    assert report.faults["action_out_of_range"] == sum(beyond) == 5
    assert [float(action["gripper"]) for action in rig.applied[:5]] == [2.0] * 5
    assert report.fault_events == [] and rig.last_is_safe()
    assert np.array_equal(rig.hidden(), free.hidden())
    # Asked for, it ends the run; the limited action was not sent.
    rig = make_rig(observations(5))
    report = rig.loop(actions=guard, faults=FaultPolicy(action_out_of_range="stop")).run()
    assert len(rig.applied) == 1 and rig.last_is_safe() and report.stopped_by == "fault"


def test_a_stale_observation_is_never_acted_on(make_rig, observations, clock):
    stream = observations(4)

    def stamped() -> Iterator[Any]:
        for value, age_s in zip(stream, (0.0, 0.03, 0.06, 0.0), strict=True):
            yield Stamped(value, clock.now_s - age_s)

    rig = make_rig([])
    rig.stream = stamped()
    report = rig.loop(max_age_s=0.05, faults=FaultPolicy(observation_stale="hold")).run(steps=4)
    assert (report.policy_steps, report.held, report.faults["observation_stale"]) == (3, 1, 1)
    assert "60.0 ms old, allowed are 50 ms" in report.fault_events[0].message
    rig = make_rig(observations(1))
    with pytest.raises(LoopError, match="return Stamped"):
        rig.loop(max_age_s=0.05).run()
    assert rig.last_is_safe() and rig.session.steps == 0
    # Of the future, or of no time at all: from another clock.
    for time_s in (clock.now_s + 100.0, float("nan")):
        rig = make_rig([Stamped(stream[0], time_s)])
        with pytest.raises(LoopError, match="observation_stale"):
            rig.loop(max_age_s=0.05).run()
    rig = make_rig([Stamped(stream[0], clock.now_s - 9.0)])
    report = rig.loop(max_age_s=0.05, faults=FaultPolicy(observation_stale="continue")).run(steps=1)
    assert (report.policy_steps, report.faults["observation_stale"]) == (1, 1)


def test_read_returning_late_skips_ticks_and_can_be_answered(clock):
    def run(reaction):
        robot = Robot(clock)
        robot.stalls = {2: 0.05}
        loop = ControlLoop(
            Doubler(clock),
            robot.read,
            robot.apply,
            rate_hz=50.0,
            actions=ActionGuard(safe_action=-7),
            faults=FaultPolicy(overrun=reaction),
            clock=clock,
            sleep=clock.sleep,
        )
        return robot, loop.run(steps=5)

    robot, report = run("continue")
    assert robot.applied == [2, 4, 6, 8, 10, -7]
    assert (report.overruns, report.misses, report.faults["overrun"]) == (1, 2, 1)
    robot, report = run("safe")
    assert robot.applied == [2, 4, 6, -7, 8, -7] and report.safe == 1
    robot, report = run("hold")
    assert robot.applied == [2, 4, 6, 6, 8, -7] and report.held == 1
    robot, report = run("stop")
    assert robot.applied == [2, 4, 6, -7] and report.stopped_by == "fault"


def test_the_bundles_files_replaced_while_running_change_nothing(
    own_bundle, make_rig, observations, clock
):
    stream = observations(6)
    rig = Rig(load_policy(own_bundle).session(), clock, stream)
    undisturbed = make_rig(stream)
    undisturbed.loop().run(steps=6)

    def apply(action):
        rig.apply(action)
        if len(rig.applied) == 3:
            for file in own_bundle.rglob("*"):
                if file.is_file():
                    file.write_bytes(b"replaced")
            shutil.rmtree(own_bundle)

    report = rig.loop(apply=apply).run(steps=6)
    assert report.stopped_by == "steps" and rig.last_is_safe()
    for got, expected in zip(rig.applied, undisturbed.applied, strict=True):
        np.testing.assert_array_equal(got["joints"], expected["joints"])
    np.testing.assert_array_equal(rig.hidden(), undisturbed.hidden())


@pytest.mark.parametrize("jump_s", [-3600.0, -0.5, 3600.0])
def test_a_clock_that_steps_causes_neither_a_burst_nor_a_halt(clock, robot, jump_s):
    real_s = 0.0
    real_reads: list[float] = []

    def sleep(duration_s):
        nonlocal real_s
        real_s += duration_s
        clock.sleep(duration_s)

    def read():
        real_reads.append(real_s)
        value = robot.read()
        if value == 5:
            clock.now_s += jump_s
        return value

    loop = ControlLoop(
        Doubler(clock),
        read,
        robot.apply,
        rate_hz=50.0,
        actions=ActionGuard(safe_action=-7),
        clock=clock,
        sleep=sleep,
    )
    report = loop.run(steps=20)
    assert robot.applied == [*range(2, 42, 2), -7]
    assert report.clock_steps == (jump_s < 0)
    assert report.overruns == (jump_s > 0)
    gaps = np.diff(real_reads)
    # The work takes 4 ms of each period, during which nobody sleeps.
    assert gaps.min() > 0.0 and gaps.max() < 0.045
    assert np.median(gaps) == pytest.approx(0.016)


@pytest.mark.parametrize("at", [3, 4])
def test_a_clock_that_is_set_back_makes_nothing_be_held_for_longer(clock, robot, at):
    def read():
        value = robot.read()
        if value == at:
            clock.now_s -= 3600.0
        if value >= 3:
            raise OSError("bus off")
        return value

    loop = ControlLoop(
        Doubler(clock),
        read,
        robot.apply,
        rate_hz=50.0,
        actions=ActionGuard(safe_action=-7),
        faults=FaultPolicy(read_error="hold", hold_limit_s=0.05),
        clock=clock,
        sleep=clock.sleep,
    )
    report = loop.run(steps=10)
    assert robot.applied == [2, 4, 4, 4, 4, *[-7] * 6]
    assert (report.held, report.clock_steps) == (3, 1)
    assert 0.1 < report.elapsed_s < 0.3


def test_loops_take_their_time_from_a_clock_that_is_never_set():
    import inspect
    import time

    clock = inspect.signature(ControlLoop).parameters["clock"].default
    assert clock is time.perf_counter
    assert time.get_clock_info("perf_counter").monotonic
    assert not time.get_clock_info("perf_counter").adjustable


def test_reactions_that_make_no_sense_are_refused(clock, robot, types_unchecked):
    for wrong in ({"read_error": "continue"}, {"overrun": "panic"}, {"blocked": "hold"}):
        with pytest.raises(LoopError, match="the reaction to .* expected one of"):
            FaultPolicy(**wrong)
    with pytest.raises(LoopError, match="hold_limit_s is -1"):
        FaultPolicy(hold_limit_s=-1.0)
    with pytest.raises(LoopError, match="read_error is 'safe', but there is no safe action"):
        ControlLoop(
            Doubler(clock),
            robot.read,
            robot.apply,
            rate_hz=1.0,
            faults=FaultPolicy(read_error="safe"),
        )


def test_a_storm_of_faults_is_counted_in_constant_memory(make_rig):
    rig = make_rig([OSError(f"fault {k}") for k in range(1000)])
    report = rig.loop(faults=FaultPolicy(read_error="safe")).run(steps=1000)
    assert report.faults["read_error"] == 1000 and len(report.fault_events) == 32
    assert [event.tick for event in report.fault_events[15:18]] == [15, 984, 985]
