"""A callback that is stuck. These tests wait for real threads, and for events rather than times."""

import threading
import time

import numpy as np
import pytest

from serving import ActionGuard, ControlLoop, FaultPolicy, LoopError, Watchdog
from serving.control import sending
from serving.control.actions import ActionPath

TIMEOUT_S = 0.25


class Stuck:
    """A robot and a session of which one call does not come back before the watchdog has acted."""

    def __init__(self, phase: str, *, sends: int = 1) -> None:
        self.phase = phase
        self.sends = sends
        self.released = threading.Event()
        self.applied: list[tuple[str, float]] = []
        self.emergencies: list[tuple[str, object]] = []
        self.calls = 0
        self.steps = 0

    def maybe_wait(self, phase: str) -> None:
        if phase == self.phase:
            self.calls += 1
            if self.calls == 3:
                assert self.released.wait(30.0)
                # Until the watchdog has let go of what it was sending.
                time.sleep(0.01)

    def read(self) -> float:
        self.maybe_wait("read")
        return 1.0

    def step(self, observation: float) -> float:
        self.maybe_wait("the policy")
        self.steps += 1
        return observation + self.steps

    def apply(self, action: float) -> None:
        name = threading.current_thread().name
        if name != "watchdog":
            self.maybe_wait("apply")
        self.applied.append((name, action))
        if name == "watchdog" and sum(who == name for who, _ in self.applied) >= self.sends:
            self.released.set()

    def emergency(self, action: object) -> None:
        self.emergencies.append((threading.current_thread().name, action))
        self.released.set()

    def loop(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        emergency: bool = False,
        ramp_s: float = 0.0,
        **faults,
    ) -> ControlLoop:
        return ControlLoop(
            self,
            self.read,
            self.apply,
            rate_hz=200.0,
            actions=ActionGuard(safe_action=0.0, ramp_s=ramp_s),
            faults=FaultPolicy(**faults),
            watchdog=Watchdog(timeout_s, self.emergency if emergency else None),
        )


@pytest.mark.parametrize("phase", ["read", "the policy"])
def test_the_watchdog_sends_the_safe_action_in_place_of_a_blocked_thread(phase):
    robot = Stuck(phase)
    with pytest.raises(LoopError, match=f"because of blocked: {phase} was blocked") as raised:
        robot.loop().run(steps=10)
    assert robot.applied[:2] == [("MainThread", 2.0), ("MainThread", 3.0)]
    assert robot.applied[2] == ("watchdog", 0.0)
    # What the thread had in mind when it got stuck is never sent.
    assert {action for _, action in robot.applied[2:]} == {0.0}
    assert robot.applied[-1] == ("MainThread", 0.0)
    report = raised.value.report
    assert (report.watchdog_acts, report.faults["blocked"]) == (1, 1)
    assert report.safe_action_sent is True
    # A read that comes back too late is not acted on: the carry stays.
    assert robot.steps == (2 if phase == "read" else 3)


def test_the_watchdog_goes_along_the_ramp_at_the_control_rate():
    robot = Stuck("read", sends=6)
    with pytest.raises(LoopError):
        robot.loop(ramp_s=0.02).run(steps=10)
    sent = [action for who, action in robot.applied if who == "watchdog"]
    assert sent[:6] == pytest.approx([2.25, 1.5, 0.75, 0.0, 0.0, 0.0])


def test_a_blocked_apply_is_not_entered_twice_and_only_the_emergency_function_helps():
    robot = Stuck("apply")
    with pytest.raises(LoopError, match="blocked: apply was blocked") as raised:
        robot.loop(emergency=True).run(steps=10)
    assert robot.emergencies == [("watchdog", 0.0)]
    assert all(who == "MainThread" for who, _ in robot.applied)
    assert robot.applied[-1][1] == 0.0 and raised.value.report.watchdog_acts == 1


def test_without_an_emergency_function_a_blocked_apply_is_reported():
    robot = Stuck("apply")
    threading.Timer(4 * TIMEOUT_S, robot.released.set).start()
    with pytest.raises(LoopError, match="blocked: apply was blocked") as raised:
        robot.loop().run(steps=10)
    assert any("give it an emergency function" in note for note in raised.value.report.notes)
    assert robot.applied[-1] == ("MainThread", 0.0)


def test_an_emergency_function_goes_before_apply_and_its_failure_is_reported():
    robot = Stuck("read")
    with pytest.raises(LoopError):
        robot.loop(emergency=True).run(steps=10)
    assert robot.emergencies == [("watchdog", 0.0)]
    assert all(who == "MainThread" for who, _ in robot.applied)

    robot = Stuck("read")

    def broken(action):
        robot.released.set()
        raise OSError("relay")

    loop = ControlLoop(
        robot, robot.read, robot.apply, rate_hz=200.0, watchdog=Watchdog(TIMEOUT_S, broken)
    )
    with pytest.raises(LoopError) as raised:
        loop.run(steps=10)
    assert raised.value.report.notes == ["the watchdog could not act: OSError: relay"]


@pytest.mark.parametrize("reaction", ["continue", "safe", "stop"])
def test_a_loop_that_was_blocked_can_go_on(reaction):
    robot = Stuck("read")
    report = robot.loop(blocked=reaction).run(steps=6)
    assert report.stopped_by == ("fault" if reaction == "stop" else "steps")
    assert report.faults["blocked"] == 1 and robot.applied[-1][1] == 0.0
    if reaction != "stop":
        assert robot.applied[-2] == ("MainThread", 1.0 + robot.steps)


@pytest.mark.parametrize("phase", ["the policy", "apply"])
def test_a_cycle_that_also_came_too_late_takes_nothing_off_the_safe_reaction(phase):
    robot = Stuck(phase)
    emergency = phase == "apply"  # which the watchdog cannot enter a second time
    report = robot.loop(blocked="safe", emergency=emergency).run(steps=6)
    assert report.faults["blocked"] == report.safe == 1 and report.faults["overrun"] >= 1
    mine = [action for who, action in robot.applied if who == "MainThread"]
    # An apply that was stuck has applied its action in the end.
    assert mine[:3] == ([2.0, 3.0, 0.0] if phase == "the policy" else [2.0, 3.0, 4.0])
    assert phase == "the policy" or mine[3] == 0.0


@pytest.mark.parametrize("emergency", [False, True])
def test_an_action_from_before_the_block_is_not_sent_after_it(emergency):
    robot = Stuck("read")
    loop = ControlLoop(
        robot,
        robot.read,
        robot.apply,
        rate_hz=200.0,
        policy_every=2,
        actions=ActionGuard(safe_action=0.0),
        faults=FaultPolicy(blocked="continue"),
        watchdog=Watchdog(TIMEOUT_S, robot.emergency if emergency else None),
    )
    report = loop.run(steps=6)
    assert report.faults["blocked"] == 1
    mine = [action for who, action in robot.applied if who == "MainThread"]
    # Two policy steps, then the safe action is held until the third.
    block = mine.index(0.0)
    assert set(mine[:block]) == {2.0, 3.0}
    assert set(mine[block:]) == {0.0, *(1.0 + step for step in range(3, robot.steps + 1))}


def test_a_loop_in_time_never_meets_the_watchdog():
    robot = Stuck("nowhere")
    report = robot.loop(timeout_s=30.0).run(steps=50)
    assert report.watchdog_acts == 0 and report.faults["blocked"] == 0
    assert np.array([action for _, action in robot.applied[:-1]]).tolist() == list(range(2, 52))
    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]


def test_an_interrupt_that_leaves_the_lock_taken_keeps_no_safe_action_back(monkeypatch):
    monkeypatch.setattr(sending, "PATIENCE_S", 5.0)
    robot = Stuck("nowhere")
    step = robot.step

    def interrupted(observation):
        if robot.steps == 2 and robot.phase == "nowhere":
            loop._sender._lock.acquire()
            raise KeyboardInterrupt
        return step(observation)

    robot.step = interrupted
    loop, began_s = robot.loop(), time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        loop.run(steps=10)
    assert robot.applied == [("MainThread", 2.0), ("MainThread", 3.0), ("MainThread", 0.0)]
    assert time.perf_counter() - began_s < 4.0  # nobody waited for a lock of one's own
    # The watchdog of the next run gets the lock again.
    robot.phase = "read"
    with pytest.raises(LoopError, match="read was blocked"):
        loop.run(steps=10)
    assert ("watchdog", 0.0) in robot.applied


def test_a_clock_that_is_set_back_keeps_the_watchdog_from_nothing():
    robot, set_back_s = Stuck("read"), 0.0
    read = robot.read

    def setting():
        nonlocal set_back_s
        set_back_s = 3600.0 if robot.calls == 2 else set_back_s
        return read()

    loop = ControlLoop(
        robot,
        setting,
        robot.apply,
        rate_hz=200.0,
        actions=ActionGuard(safe_action=0.0),
        watchdog=Watchdog(TIMEOUT_S),
        clock=lambda: time.perf_counter() - set_back_s,
    )
    with pytest.raises(LoopError, match="read was blocked"):
        loop.run(steps=10)
    assert [action for _, action in robot.applied][:3] == [2.0, 3.0, 0.0]


def test_a_watchdog_stuck_in_apply_does_not_stop_the_control_thread_from_ending(monkeypatch):
    monkeypatch.setattr(sending, "PATIENCE_S", 0.05)
    robot, ended = Stuck("read"), threading.Event()
    apply = robot.apply

    def stuck_there(action):
        if threading.current_thread().name == "watchdog":
            robot.released.set()
            assert ended.wait(30.0)
        else:
            apply(action)

    robot.apply = stuck_there
    with pytest.raises(LoopError, match="the watchdog is stuck in apply") as raised:
        loop = robot.loop()
        threading.Timer(1.0, ended.set).start()
        loop.run(steps=10)
    ended.set()
    assert raised.value.report.safe_action_sent is False
    assert robot.steps == 2


def test_the_watchdog_does_not_wait_for_a_thread_that_is_about_to_send(clock, robot):
    path = ActionPath(object(), ActionGuard(safe_action=0.0), rate_hz=1.0)
    sender = sending.Sender(robot.apply, path, clock=clock, hold_limit_s=1.0)
    number = sender.beat.state[0]
    taken_over = []
    with sender._lock:
        watchdog = threading.Thread(
            target=lambda: taken_over.append(sender.take_over("read", number, None))
        )
        watchdog.start()
        watchdog.join()
    assert taken_over == [False]
    assert sender.take_over("read", number + 1, None) is False
    assert robot.applied == [] and sender.taken_over is None
    assert sender.take_over("read", number, None) is True
    assert robot.applied == [0.0] and sender.taken_over == "read"


def test_a_watchdog_that_could_send_nothing_is_refused(types_unchecked):
    with pytest.raises(LoopError, match="neither a safe action nor an emergency function"):
        ControlLoop(Stuck("read"), int, print, rate_hz=1.0, watchdog=Watchdog(1.0))
    with pytest.raises(LoopError, match="timeout_s is 0"):
        Watchdog(0.0)
    with pytest.raises(LoopError, match="emergency is 3, expected a function"):
        Watchdog(1.0, 3)
