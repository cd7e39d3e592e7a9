import pytest

from serving.control.timing import (
    NextTick,
    Schedule,
    blend,
    next_tick,
    policy_is_due,
    realigned,
    ticks_within,
)

SCHEDULE = Schedule(start_s=100.0, period_s=0.02)


@pytest.mark.parametrize(
    ("tick", "now_s", "expected"),
    [
        (0, 100.001, NextTick(1, 0)),
        (0, 100.0199, NextTick(1, 0)),
        (0, 100.02, NextTick(1, 0)),
        (0, 100.0201, NextTick(2, 1)),
        (0, 100.05, NextTick(3, 2)),
        (7, 100.141, NextTick(8, 0)),
        (7, 101.0, NextTick(50, 42)),
        (7, 90.0, NextTick(8, 0)),
    ],
)
def test_the_next_tick_is_the_first_whose_deadline_is_not_past(tick, now_s, expected):
    assert next_tick(SCHEDULE, tick, now_s) == expected


def test_deadlines_do_not_drift_over_a_year_of_ticks():
    year = 365 * 24 * 3600 * 50
    assert SCHEDULE.deadline_s(year) == pytest.approx(100.0 + year / 50, abs=1e-5)
    assert next_tick(SCHEDULE, year, SCHEDULE.deadline_s(year) + 0.001) == NextTick(year + 1, 0)


def test_two_ticks_are_never_closer_than_a_period_whatever_the_work_takes():
    import numpy as np

    rng = np.random.default_rng(0)
    schedule = Schedule(start_s=12345.678, period_s=0.01)
    tick, previous_s, now_s = 0, -1.0, schedule.start_s
    for work_s in rng.exponential(0.008, 5000):
        deadline_s = schedule.deadline_s(tick)
        now_s = max(now_s, deadline_s)
        assert now_s - previous_s > 0.01 - 1e-7
        assert now_s == pytest.approx(deadline_s, abs=1e-7)
        previous_s = now_s
        now_s += work_s
        following = next_tick(schedule, tick, now_s)
        assert following.tick == tick + 1 + following.skipped
        tick = following.tick


@pytest.mark.parametrize(
    ("duration_s", "rate_hz", "expected"),
    [(10.0, 100.0, 1000), (0.3, 10.0, 3), (0.31, 10.0, 4), (1e-3, 10.0, 1), (3.0, 1 / 3, 1)],
)
def test_a_duration_holds_the_ticks_that_are_due_within_it(duration_s, rate_hz, expected):
    assert ticks_within(duration_s, rate_hz) == expected


@pytest.mark.parametrize("every", [1, 2, 7, 10])
def test_the_policy_acts_once_in_each_slot_that_has_a_tick_whatever_the_work_takes(every):
    import numpy as np

    rng = np.random.default_rng(every)
    schedule = Schedule(start_s=50.0, period_s=0.002)
    tick, last, acted, ran = 0, None, [], []
    for work_s in rng.exponential(0.003, 3000):
        ran.append(tick)
        if policy_is_due(tick, last, every):
            last = tick
            acted.append(tick)
        share = blend(tick, acted[-1], every)
        assert 0.0 < share <= 1.0
        assert share == 1.0 or (tick + 1) % every
        tick = next_tick(schedule, tick, schedule.deadline_s(tick) + work_s).tick
    slots = [tick // every for tick in acted]
    assert slots == sorted(set(slots)) == sorted({tick // every for tick in ran})


def test_only_a_clock_that_was_set_back_moves_the_deadlines():
    for late_s in (0.0, 0.019, 0.5, 1e6):
        assert realigned(SCHEDULE, 10, SCHEDULE.deadline_s(9) + late_s) is SCHEDULE
    moved = realigned(SCHEDULE, 10, now_s=1.0)
    assert moved.deadline_s(10) == pytest.approx(1.02)
    assert moved.period_s == SCHEDULE.period_s
