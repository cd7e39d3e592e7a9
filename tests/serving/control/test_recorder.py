"""What was recorded of a run, and replaying it."""

import collections
import gc
import json
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from loop_doubles import Doubler, making_nan, with_nan

from serving import (
    ActionGuard,
    ControlLoop,
    FaultPolicy,
    FlightRecorder,
    LoopError,
    RecordError,
    load_policy,
    read_record,
    replay_record,
)
from serving.control.record_file import STEP_NOT_RUN, STEP_OK, STEP_REFUSED
from serving.files import write_atomically


def faulted(make_rig, observations, directory: Path, spoil=with_nan, **change: Any) -> Any:
    """The report of a run of five good steps and a fault, and its rig."""
    stream = observations(6)
    stream[5] = spoil(stream[5])
    rig = make_rig(stream)
    with pytest.raises(LoopError) as raised:
        rig.loop(recorder=FlightRecorder(directory), **change).run()
    return raised.value.report, rig


@pytest.fixture
def policy(bundle_path):
    return load_policy(bundle_path)


@pytest.mark.parametrize(
    ("spoil", "status"), [(with_nan, STEP_NOT_RUN), (making_nan, STEP_REFUSED)]
)
def test_a_faulted_run_leaves_a_record_that_replays_to_the_same_bits(
    make_rig, observations, tmp_path, policy, spoil, status
):
    report, rig = faulted(make_rig, observations, tmp_path / "records", spoil)
    (file,) = report.records
    record = read_record(file)
    assert record.tensors["step/status"].tolist() == [STEP_OK] * 5 + [status]
    assert record.tensors["step/tick"].tolist() == list(range(6))
    assert record.info.runtime == "onnx" and record.info.policy == "leaky"
    assert record.info.reason.startswith(report.fault_events[0].kind)
    assert record.info.faults[0]["tick"] == 5
    np.testing.assert_array_equal(record.tensors["final_carry/carry.hidden"][0], rig.hidden())
    gripper = [float(action["gripper"]) for action in rig.applied[:5]]
    np.testing.assert_array_equal(record.tensors["action/action.gripper"][:5, 0], gripper)
    replayed = replay_record(policy, record)
    assert replayed.passed and replayed.tolerance == 0.0
    assert [each.identical for each in replayed.passes] == [True, True]
    assert (replayed.steps, replayed.skipped) == ((5, 1) if spoil is with_nan else (6, 0))
    json.dumps(replayed.to_json(), allow_nan=False)


def test_an_observation_that_was_refused_is_in_the_record(make_rig, observations, tmp_path):
    report, _ = faulted(make_rig, observations, tmp_path)
    position = read_record(report.records[0]).tensors["observation/obs.arm.position"]
    assert np.isnan(position[5, 0, 1]) and np.isfinite(position[:5]).all()


def test_ticks_say_what_was_sent_when_and_what_went_wrong(make_rig, observations, tmp_path):
    stream = [*observations(2), OSError("bus off"), *observations(1)]
    rig = make_rig(stream)
    recorder = FlightRecorder(tmp_path, at_end=True)
    rig.loop(recorder=recorder, faults=FaultPolicy(read_error="hold")).run(steps=4)
    files = sorted(tmp_path.iterdir(), key=lambda file: int(file.stem.rpartition("-")[2]))
    first, second = (read_record(file) for file in files)
    ticks = [*first.tensors["tick/tick"], *second.tensors["tick/tick"]]
    assert ticks == [0, 1, 2, 3] and first.info.reason == "read_error: OSError: bus off"
    assert first.tensors["tick/mode"].tolist() == [0, 0, 1]
    assert first.tensors["tick/faults"].tolist() == [0, 0, 1]
    sent = first.tensors["tick/sent"]
    assert sent.shape == (3, 4)
    np.testing.assert_array_equal(sent[2], sent[1])
    np.testing.assert_array_equal(np.float32(sent[1][1:]), rig.applied[1]["joints"])
    assert np.diff(first.tensors["tick/deadline_s"]) == pytest.approx([0.02, 0.02])
    assert np.diff(first.tensors["tick/ended_s"]).min() > 0.0


def test_only_the_last_seconds_are_kept(make_rig, observations, tmp_path, policy):
    rig = make_rig(observations(13))
    recorder = FlightRecorder(tmp_path, seconds=0.1, at_end=True)
    report = rig.loop(recorder=recorder).run(steps=13)
    record = read_record(report.records[0])
    assert record.tensors["step/tick"].tolist() == [8, 9, 10, 11, 12]
    assert record.tensors["tick/tick"].tolist() == [8, 9, 10, 11, 12]
    np.testing.assert_array_equal(record.tensors["carry/carry.hidden"][:, 0], rig.carries[8:13])
    assert replay_record(policy, record).passed


def test_a_reset_in_the_middle_is_replayed(make_rig, observations, tmp_path, policy):
    rig = make_rig(observations(9))

    def read():
        value = rig.read()
        if len(rig.applied) == 4:
            rig.session.reset()
        return value

    report = rig.loop(recorder=FlightRecorder(tmp_path, at_end=True), read=read).run(steps=9)
    record = read_record(report.records[0])
    assert record.tensors["step/carry_changes"].tolist() == [0] * 4 + [1] * 5
    assert replay_record(policy, record).passed


def test_rows_of_a_batch_are_replayed_with_a_decimated_policy(leaky, bundle_path, tmp_path, clock):
    policy = load_policy(bundle_path)
    session = policy.session(3)
    rng = np.random.default_rng(0)
    loop = ControlLoop(
        session,
        lambda: leaky.tree(leaky.observe(rng, 3)),
        lambda _: None,
        policy_every=5,
        recorder=FlightRecorder(tmp_path, seconds=0.2, at_end=True),
        clock=clock,
        sleep=clock.sleep,
    )
    report = loop.run(steps=100)
    record = read_record(report.records[0])
    assert record.tensors["step/tick"].tolist() == list(range(50, 100, 5))
    assert len(record.tensors["tick/tick"]) == 50 and record.tensors["tick/sent"].shape[1] == 12
    assert replay_record(policy, record).passed


def test_a_difference_is_found_where_it_is(make_rig, observations, tmp_path, policy):
    report, _ = faulted(make_rig, observations, tmp_path)
    record = read_record(report.records[0])
    joints = record.tensors["action/action.joints"]
    joints[3, 0, 2] = np.nextafter(joints[3, 0, 2], np.float32(9))
    replayed = replay_record(policy, record)
    assert not replayed.passed
    assert [each.first_difference for each in replayed.passes] == [3, 3]
    assert replay_record(policy, record, tolerance=1e-5).passed
    joints[3, 0, 2] += 0.01
    assert not replay_record(policy, record, tolerance=1e-5).passed
    # A carry that did not follow from the step before it.
    report, _ = faulted(make_rig, observations, tmp_path)
    record = read_record(report.records[-1])
    record.tensors["carry/carry.hidden"][2, 0, 0] += 0.5
    forced, free = replay_record(policy, record).passes
    assert forced.first_difference == 1 and free.first_difference == 1


def test_records_are_written_by_another_thread_while_the_loop_goes_on(
    make_rig, observations, tmp_path, monkeypatch, policy
):
    from serving.control import recorder as module

    write, threads, may_go_on = module.write_record, [], threading.Event()

    def slow(*arguments):
        threads.append(threading.current_thread())
        assert may_go_on.wait(30.0)
        write(*arguments)

    monkeypatch.setattr(module, "write_record", slow)
    good = observations(12)
    rig = make_rig([*good[:3], OSError("a"), *good[3:6], OSError("b"), *good[6:]])

    def apply(action):
        rig.apply(action)
        if len(rig.applied) == 13:
            may_go_on.set()

    loop = rig.loop(
        apply=apply, recorder=FlightRecorder(tmp_path), faults=FaultPolicy(read_error="hold")
    )
    report = loop.run(steps=14)
    # What came after the first record is in another one, written at the end of the run.
    assert len(report.records) == 2 and threads[0] is not threading.current_thread()
    assert threads[1] is threading.current_thread()
    second = read_record(report.records[1])
    assert second.tensors["tick/tick"].tolist() == list(range(4, 14))
    assert second.info.reason == "read_error: OSError: b"
    record = read_record(report.records[0])
    assert record.tensors["step/tick"].tolist() == [0, 1, 2]
    assert record.tensors["tick/tick"].tolist() == [0, 1, 2, 3]
    assert replay_record(policy, record).passed


def test_a_record_can_be_asked_for_and_their_number_is_limited(make_rig, observations, tmp_path):
    rig = make_rig(observations(4))

    def apply(action):
        rig.apply(action)
        if len(rig.applied) == 2:
            loop.dump_record()

    loop = rig.loop(apply=apply, recorder=FlightRecorder(tmp_path))
    report = loop.run(steps=4)
    assert read_record(report.records[0]).info.reason == "asked for"
    assert loop.run.__self__ is loop and len(report.records) == 1
    with pytest.raises(LoopError, match="give the loop a FlightRecorder"):
        rig.loop().dump_record()
    stream = [value for good in observations(20) for value in (good, OSError("bus off"))]
    rig = make_rig(stream)
    recorder = FlightRecorder(tmp_path / "many", max_files=2)
    loop = rig.loop(recorder=recorder, faults=FaultPolicy(read_error="hold"))
    assert len(loop.run(steps=40).records) <= 2
    assert 1 <= len(list((tmp_path / "many").iterdir())) <= 2


@pytest.mark.parametrize("good", [0, 1])
def test_a_fault_that_ends_a_run_leaves_a_record_also_without_a_step(
    make_rig, observations, tmp_path, policy, good
):
    rig = make_rig([*observations(good), *[OSError("bus off")] * 20])
    faults = FaultPolicy(read_error="hold", hold_limit_s=0.1)
    if not good:
        faults = FaultPolicy()
    loop = rig.loop(faults=faults, actions=ActionGuard(), recorder=FlightRecorder(tmp_path))
    if good:
        report = loop.run()
        assert report.stopped_by == "fault"
    else:
        with pytest.raises(LoopError) as raised:
            loop.run()
        report = raised.value.report
    record = read_record(report.records[-1])
    assert record.steps == 0 and record.info.reason.startswith("read_error: ")
    assert len(record.info.faults) == report.faults["read_error"] == (7 if good else 1) - good
    assert (record.tensors["tick/faults"] == 1).all() and len(record.tensors["tick/tick"])
    with pytest.raises(RecordError, match="not run in any of its 0 steps, .* of read_error"):
        replay_record(policy, record)


def test_no_run_writes_more_records_than_it_may_and_the_last_is_that_of_its_end(
    make_rig, observations, tmp_path
):
    def run(max_files):
        stream = [value for good in observations(50) for value in (good, OSError("bus off"))]
        rig = make_rig([*stream, with_nan(observations(1)[0])])
        recorder = FlightRecorder(tmp_path / str(max_files), seconds=0.2, max_files=max_files)
        loop = rig.loop(recorder=recorder, faults=FaultPolicy(read_error="hold"))
        with pytest.raises(LoopError) as raised:
            loop.run()
        return raised.value.report

    report = run(3)
    assert len(report.records) == 3
    assert read_record(report.records[-1]).info.reason.startswith("observation_invalid")
    report = run(1)
    assert len(report.records) == 1
    assert report.notes == ["no flight record of the run's end: max_files is 1"]


def test_faults_that_come_again_and_again_are_in_records_of_full_length(
    make_rig, observations, tmp_path, policy
):
    stream = [value for good in observations(50) for value in (good, OSError("bus off"))]
    rig = make_rig(stream)
    recorder = FlightRecorder(tmp_path, seconds=0.4, max_files=4)
    loop = rig.loop(recorder=recorder, faults=FaultPolicy(read_error="hold"))
    report = loop.run(steps=100)
    ticks = [read_record(file).tensors["tick/tick"].tolist() for file in report.records]
    assert ticks[0] == [0, 1]
    assert all(len(each) == 20 for each in ticks[1:-1])
    assert all(replay_record(policy, read_record(file)).passed for file in report.records)


def test_a_disk_that_fails_is_said_in_the_report(make_rig, observations, tmp_path):
    (tmp_path / "file").touch()
    report, rig = faulted(make_rig, observations, tmp_path / "file")
    assert report.records == [] and rig.last_is_safe()
    assert report.notes[0].startswith("no flight record was written: ")


def test_what_cannot_be_recorded_is_refused_before_the_run(
    clock, robot, make_rig, observations, tmp_path, types_unchecked
):
    recorder = FlightRecorder(tmp_path)
    with pytest.raises(LoopError, match="a Doubler cannot be recorded"):
        ControlLoop(Doubler(clock), robot.read, robot.apply, rate_hz=1.0, recorder=recorder)
    with pytest.raises(LoopError, match="take .* MB of memory, allowed are 1 MB"):
        make_rig([]).loop(recorder=FlightRecorder(tmp_path, seconds=1e4, max_bytes=1_000_000))
    with pytest.raises(LoopError, match="seconds is 0"):
        FlightRecorder(tmp_path, seconds=0)
    with pytest.raises(LoopError, match="max_files is 0"):
        FlightRecorder(tmp_path, max_files=0)


def test_files_that_are_no_record_of_the_bundle_are_refused_with_the_reason(
    make_rig, observations, tmp_path, policy, own_bundle
):
    report, _ = faulted(make_rig, observations, tmp_path / "records")
    good = Path(report.records[0])
    data = good.read_bytes()
    file = tmp_path / "bad"

    def refused(content: bytes) -> str:
        file.write_bytes(content)
        with pytest.raises(RecordError) as raised:
            replay_record(policy, read_record(file))
        assert str(file) in str(raised.value)
        return str(raised.value)

    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path / "absent")
    for length in (0, 7, 100, len(data) - 1):
        assert "not a valid safetensors file" in refused(data[:length])
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert "not a valid safetensors file" in refused(rng.bytes(200))
    assert "no flight record" in refused(safetensors.numpy.save({"a": np.zeros(3)}))
    assert "version 7" in refused(data.replace(b'\\"version\\":1', b'\\"version\\":7'))
    for before, after in ((b'\\"rate_hz\\"', b'\\"rate_hx\\"'), (b'"step/tick"', b'"step/tock"')):
        assert before in data
        refused(data.replace(before, after))
    assert "'carry/carry.hidden' is missing" in refused(
        data.replace(b'"carry/carry.hidden"', b'"carry/carry.hodden"')
    )
    changed = json.loads((own_bundle / "manifest.json").read_text())
    changed["name"] = "another"
    write_atomically(own_bundle / "manifest.json", json.dumps(changed).encode())
    with pytest.raises(RecordError, match="recorded with another bundle, of the policy 'leaky'"):
        replay_record(load_policy(own_bundle), read_record(good))
    with pytest.raises(RecordError, match="tolerance is -1"):
        replay_record(policy, read_record(good), tolerance=-1.0)


def test_a_long_run_takes_no_more_memory_than_a_short_one(make_rig, observations, tmp_path):
    observation = observations(1)[0]
    rig = make_rig([])
    rig.clock.slept_s = collections.deque(maxlen=1)
    guard = ActionGuard(high=2.0, rate_limit_per_s=10.0, safe_action=-1.0)
    loop = rig.loop(
        read=lambda: observation,
        apply=lambda action: None,
        actions=guard,
        recorder=FlightRecorder(tmp_path, seconds=2.0),
        policy_every=2,
        between="interpolate",
    )

    def peak_bytes(steps: int) -> int:
        gc.collect()
        tracemalloc.reset_peak()
        loop.run(steps=steps)
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        # What one run keeps until the next takes its place has to be counted from the start.
        for _ in range(3):
            peak_bytes(100)
        short, long = peak_bytes(100), peak_bytes(1000)
    finally:
        tracemalloc.stop()
    assert long < short + 10_000


def test_a_record_of_one_runtime_is_replayed_by_the_others(graph_bundle, tmp_path, clock):
    policy = load_policy(graph_bundle, runtime="onnx")
    rng = np.random.default_rng(1)
    stream = iter([*rng.normal(size=(150, 4)).astype(np.float32), np.full(4, np.nan, np.float32)])
    loop = ControlLoop(
        policy.session(),
        stream.__next__,
        lambda _: None,
        recorder=FlightRecorder(tmp_path),
        clock=clock,
        sleep=clock.sleep,
    )
    with pytest.raises(LoopError) as raised:
        loop.run()
    record = read_record(raised.value.report.records[0])
    for runtime in policy.manifest.artefacts:
        report = replay_record(load_policy(graph_bundle, runtime=runtime), record)
        assert report.passed and report.steps == 150, runtime
        assert report.tolerance == (0.0 if runtime == "onnx" else 1e-5)
        assert report.passes[0].identical or runtime != "onnx"
