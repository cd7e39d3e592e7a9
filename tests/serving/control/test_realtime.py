"""Settings of the system: tried, reported, undone. What the machine allows decides no test."""

import gc
import os
import threading

import pytest
from loop_doubles import Doubler

from serving import ControlLoop, LoopError, RealTime
from serving.control import realtime
from serving.control.realtime import real_time


def state() -> tuple[object, ...]:
    scheduler = (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)
    return (gc.isenabled(), gc.get_freeze_count(), os.sched_getaffinity(0), scheduler)


ALL = RealTime(priority=10, cpus=(0,), lock_memory=True, freeze_gc=True)


def test_each_setting_is_set_or_its_lack_explained_and_all_are_undone():
    before = state()
    with real_time(ALL) as lines:
        subjects = [line.partition(":")[0] for line in lines]
        assert subjects == ["garbage collector", "memory lock", "processors", "scheduler"]
        assert all("not set: " in line or "Errno" not in line for line in lines)
        assert not gc.isenabled() and gc.get_freeze_count() > 0
        if "not set" not in lines[2]:
            assert os.sched_getaffinity(0) == {0}
        if "not set" not in lines[3]:
            assert os.sched_getscheduler(0) == os.SCHED_FIFO
    assert state() == before


def test_what_is_not_permitted_is_said_in_plain_words(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    before = state()
    with real_time(RealTime(priority=50, freeze_gc=True)) as lines:
        assert lines[1] == (
            "scheduler: not set: not permitted; it needs root, CAP_SYS_NICE, or a limit (rtprio, "
            "memlock)"
        )
        assert not gc.isenabled()
    assert state() == before
    required = RealTime(priority=50, freeze_gc=True, require=True)
    with pytest.raises(LoopError, match="not permitted.*; it is required"), real_time(required):
        raise AssertionError("not reached")
    assert state() == before


def test_a_system_that_has_no_such_call_is_no_failure(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    monkeypatch.setattr(realtime.sys, "platform", "darwin")
    with real_time(RealTime(cpus=(0,), lock_memory=True)) as lines:
        assert lines == [
            "memory lock: not set: not known how on darwin",
            "processors: not set: not known how on darwin",
        ]


def test_a_processor_that_does_not_exist_is_no_failure_either():
    with real_time(RealTime(cpus=(4000,))) as lines:
        assert lines[0].startswith("processors: not set: ")


def test_the_report_says_what_came_of_it(clock, robot):
    loop = ControlLoop(
        Doubler(clock),
        robot.read,
        robot.apply,
        rate_hz=50.0,
        real_time=RealTime(freeze_gc=True),
        clock=clock,
        sleep=clock.sleep,
    )
    report = loop.run(steps=3)
    assert len(report.settings) == 1 and report.settings[0].startswith("garbage collector: off")
    assert gc.isenabled()


def test_a_thread_leaves_real_time_without_a_word_where_that_is_refused():
    thread = threading.Thread(target=realtime.leave_real_time)
    thread.start()
    thread.join()
    realtime.raise_priority()


def test_values_that_no_system_takes_are_refused():
    with pytest.raises(LoopError, match="priority is 99, expected 1 to 98"):
        RealTime(priority=99)
    with pytest.raises(LoopError, match="cpus is empty"):
        RealTime(cpus=())
