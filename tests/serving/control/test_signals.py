"""Signals to a real process: the last action that it applies is the safe one."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from serving import ActionGuard, ControlLoop, LoopError, Watchdog
from serving.control.signals import EndingSignals

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import json, sys, time
import numpy as np
from serving import ActionGuard, ControlLoop, load_policy

bundle, blocks = sys.argv[1], sys.argv[2] == "blocks"
session = load_policy(bundle).session()
observation = {"arm": {"contact": [True, False], "position": [0.1, 0.2, 0.3]}, "goal": 0.5}
sent = []

def read():
    if blocks and len(sent) == 5:
        print("blocked", flush=True)
        time.sleep(1000.0)
    return observation

def apply(action):
    sent.append([float(action["gripper"]), *map(float, action["joints"])])
    if len(sent) == 5 and not blocks:
        print("running", flush=True)

safe = {"gripper": np.float32(-1), "joints": np.zeros(3, np.float32)}
loop = ControlLoop(
    session, read, apply, actions=ActionGuard(safe_action=safe, ramp_s=0.1), handle_signals=True
)
report = loop.run()
print(json.dumps({
    "sent": sent, "steps": session.steps, "count": int(session.carry["carry.count"]),
    "stopped_by": report.stopped_by, "signal": report.signal, "safe": report.safe_action_sent,
}))
"""


@pytest.mark.parametrize("where", ["runs", "blocks"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_process_with_the_safe_action_sent_last(bundle_path, name, where):

    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(bundle_path), where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(getattr(signal, name))
    output, errors = process.communicate(timeout=60.0)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert (result["stopped_by"], result["signal"], result["safe"]) == ("signal", name, True)
    *before, last = result["sent"]
    assert last == [-1.0, 0.0, 0.0, 0.0]
    # Five steps of ramp at 50 Hz, the last of them the safe action itself.
    policy_actions = len(before) - 4
    assert result["steps"] == policy_actions >= 5
    assert result["count"] == 5 + policy_actions  # the fresh carry counts from 5
    ramp = [action[0] for action in before[-5:]]
    assert ramp == sorted(ramp, reverse=True)


def test_handlers_are_put_back_and_other_threads_are_refused(clock, robot):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen = []

    class Session:
        def step(self, observation: int) -> int:
            seen.append(signal.getsignal(signal.SIGTERM))
            return observation

    loop = ControlLoop(
        Session(),
        robot.read,
        robot.apply,
        rate_hz=50.0,
        handle_signals=True,
        clock=clock,
        sleep=clock.sleep,
    )
    assert loop.run(steps=2).signal is None
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert seen[0] not in before
    errors = []

    def run():
        try:
            loop.run(steps=1)
        except LoopError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread only" in errors[0]


def test_a_signal_that_comes_while_the_safe_action_is_sent_changes_nothing(clock, robot):
    def apply(action):
        robot.apply(action)
        if len(robot.applied) in (3, 5, 6):
            signal.raise_signal(signal.SIGTERM)

    class Session:
        def step(self, observation: int) -> float:
            return 8.0

    loop = ControlLoop(
        Session(),
        robot.read,
        apply,
        rate_hz=50.0,
        actions=ActionGuard(safe_action=0.0, ramp_s=0.08),
        handle_signals=True,
        clock=clock,
        sleep=clock.sleep,
    )
    report = loop.run()
    assert robot.applied == [8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    assert (report.stopped_by, report.signal, report.steps) == ("signal", "SIGTERM", 3)


def test_a_signal_breaks_a_blocked_safe_action_off(clock, robot):
    emergencies = []

    def apply(action):
        robot.apply(action)
        if action == 0.0:
            signal.raise_signal(signal.SIGTERM)  # at once: changes nothing
            clock.now_s += 1.5
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("went on waiting")

    class Session:
        def step(self, observation: int) -> float:
            return 8.0

    loop = ControlLoop(
        Session(),
        robot.read,
        apply,
        rate_hz=50.0,
        actions=ActionGuard(safe_action=0.0),
        watchdog=Watchdog(1e6, emergencies.append),
        handle_signals=True,
        clock=clock,
        sleep=clock.sleep,
    )
    report = loop.run(steps=2)
    assert robot.applied == [8.0, 8.0, 0.0] and emergencies == [0.0]
    assert (report.stopped_by, report.signal, report.safe_action_sent) == (
        "steps",
        "SIGTERM",
        False,
    )
    assert "it was blocked, and a signal came" in report.notes[0]


def test_a_signal_that_is_sent_again_still_meets_our_handler(monkeypatch):
    asked, go_on, met = threading.Event(), threading.Event(), []

    def kill(thread, number):
        asked.set()
        assert go_on.wait(30.0)
        met.append(signal.getsignal(number))

    monkeypatch.setattr(signal, "pthread_kill", kill)
    with EndingSignals(grace_s=0.0) as signals:
        signal.raise_signal(signal.SIGTERM)
        assert asked.wait(30.0)
        threading.Timer(0.05, go_on.set).start()
    assert met == [signals._handle]


def test_an_interrupt_without_handlers_still_sends_the_safe_action_last(clock, robot):
    def read():
        if len(robot.applied) == 2:
            raise KeyboardInterrupt
        return robot.read()

    class Session:
        def step(self, observation: int) -> float:
            return 8.0

    loop = ControlLoop(
        Session(),
        read,
        robot.apply,
        rate_hz=50.0,
        actions=ActionGuard(safe_action=0.0),
        clock=clock,
        sleep=clock.sleep,
    )
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert robot.applied == [8.0, 8.0, 0.0]
    assert loop.report is not None
    assert (loop.report.stopped_by, loop.report.safe_action_sent) == ("interrupt", True)
