"""Carries by sequence, without a server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ObservationError, SequenceLimitError, SequenceLostError, StepError, load_policy
from serving.bundle import read_bundle
from serving.fleet.sequences import Request, Sequences
from serving.fleet.stateless import CarryInAndOut
from serving.runtimes import load_runtime


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sequences(bundle_path: Path, clock: Clock) -> Sequences:
    bundle = read_bundle(bundle_path)
    return Sequences(
        bundle,
        load_runtime(bundle, "onnx", {}),
        max_batch_size=8,
        max_sequences=20,
        idle_timeout_s=5.0,
        clock=clock,
    )


def row(observation: dict[str, np.ndarray], index: int) -> list[np.ndarray]:
    return [np.asarray(observation[name][index]) for name in sorted(observation)]


def test_random_batches_of_sequences_act_as_sessions_of_their_own(
    leaky: Any, bundle_path: Path, sequences: Sequences
) -> None:
    rng = np.random.default_rng(3)
    policy = load_policy(bundle_path)
    sessions: dict[int | str, Any] = {}
    for _ in range(60):
        names = [int(n) if n % 2 else f"robot {n}" for n in rng.permutation(20)[: rng.integers(20)]]
        seen = leaky.observe(rng, 20)
        requests, expected = [], []
        for index, name in enumerate(names):
            start = name not in sessions or rng.random() < 0.1
            end = bool(rng.random() < 0.1)
            if start:
                sessions[name] = policy.session()
            requests.append(
                Request(name, row(seen, index), start, end, 0 if start else sessions[name].steps)
            )
            expected.append(sessions[name].step(leaky.tree(seen, index)))
            if end:
                del sessions[name]
        for action, result in zip(expected, sequences.step(requests), strict=True):
            assert isinstance(result, list), result
            np.testing.assert_allclose(result[0], action["gripper"], atol=1e-6)
            np.testing.assert_allclose(result[1], action["joints"], atol=1e-6)
    assert len(sequences) == len(sessions)


def test_two_steps_of_one_sequence_in_one_call_follow_each_other(
    leaky: Any, bundle_path: Path, sequences: Sequences
) -> None:
    seen = leaky.observe(np.random.default_rng(0), 2)
    first, second = sequences.step(
        [Request(7, row(seen, 0), start=True), Request(7, row(seen, 1), number=1)]
    )
    session = load_policy(bundle_path).session()
    for result, index in ((first, 0), (second, 1)):
        assert isinstance(result, list)
        np.testing.assert_array_equal(result[1], session.step(leaky.tree(seen, index))["joints"])


def test_what_is_wrong_with_one_row_leaves_the_others_and_its_own_carry_alone(
    leaky: Any, bundle_path: Path, sequences: Sequences
) -> None:
    seen = leaky.observe(np.random.default_rng(1), 3)
    broken = row(seen, 1)
    broken[1] = np.array([0.0, np.nan, 0.0], np.float32)
    starts = [Request(n, row(seen, n), start=True) for n in range(3)]
    assert all(isinstance(result, list) for result in sequences.step(starts))
    results = sequences.step(
        [Request(0, row(seen, 0)), Request(1, broken, number=1), Request(2, row(seen, 2)[:2])]
    )
    assert isinstance(results[0], list)
    assert isinstance(results[1], ObservationError)
    assert str(results[1]) == "obs.arm.position: nan at index [1]; observations must be finite"
    assert isinstance(results[2], ObservationError)
    (again,) = sequences.step([Request(1, row(seen, 1), number=1)])
    session = load_policy(bundle_path).session()
    session.step(leaky.tree(seen, 1))
    assert isinstance(again, list)
    np.testing.assert_allclose(again[1], session.step(leaky.tree(seen, 1))["joints"], atol=1e-6)


def test_a_repeated_step_and_one_too_many_are_refused(leaky: Any, sequences: Sequences) -> None:
    seen = row(leaky.observe(np.random.default_rng(1), 1), 0)
    assert isinstance(sequences.step([Request(5, seen, start=True, number=0)])[0], list)
    for number in (0, 2):
        (result,) = sequences.step([Request(5, seen, number=number)])
        assert isinstance(result, SequenceLostError)
        assert f"has made 1 steps here, its client counts {number}" in str(result)


def test_an_unknown_sequence_and_an_idle_one_are_lost(
    leaky: Any, sequences: Sequences, clock: Clock
) -> None:
    seen = row(leaky.observe(np.random.default_rng(1), 1), 0)
    assert isinstance(sequences.step([Request(1, seen)])[0], SequenceLostError)
    sequences.step([Request(1, seen, start=True)])
    clock.now_s = 5.1
    (idle,) = sequences.step([Request(1, seen)])
    assert isinstance(idle, SequenceLostError) and "was idle for 5.1 s" in str(idle)
    assert len(sequences) == 0


def test_no_more_sequences_than_the_limit_until_one_has_been_idle(
    leaky: Any, sequences: Sequences, clock: Clock
) -> None:
    seen = row(leaky.observe(np.random.default_rng(1), 1), 0)
    results = sequences.step([Request(n, seen, start=True) for n in range(21)])
    assert [isinstance(result, list) for result in results] == [True] * 20 + [False]
    assert isinstance(results[20], SequenceLimitError)
    clock.now_s = 6.0
    assert isinstance(sequences.step([Request(3, seen)])[0], SequenceLostError)
    assert isinstance(sequences.step([Request(20, seen, start=True)])[0], list)
    assert isinstance(sequences.step([Request(21, seen, start=True)])[0], list)


def test_a_reset_within_a_sequence_keeps_what_the_network_keeps(
    leaky: Any, bundle_path: Path, sequences: Sequences
) -> None:
    seen = leaky.observe(np.random.default_rng(1), 2)
    session = load_policy(bundle_path).session()
    session.step(leaky.tree(seen, 0))
    session.reset()
    sequences.step([Request(1, row(seen, 0), start=True)])
    (result,) = sequences.step([Request(1, row(seen, 1), number=1, reset=True)])
    assert isinstance(result, list)
    expected = session.step(leaky.tree(seen, 1))
    np.testing.assert_array_equal(result[0], expected["gripper"])
    np.testing.assert_array_equal(result[1], expected["joints"])


def test_a_runtime_that_fails_advances_nothing(
    leaky: Any, sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = row(leaky.observe(np.random.default_rng(1), 1), 0)
    sequences.step([Request(1, seen, start=True, number=0)])

    def fail() -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(sequences._step._steps[1], "run", fail)
        (result,) = sequences.step([Request(1, seen, number=1)])
    assert isinstance(result, StepError) and "out of memory" in str(result)
    assert isinstance(sequences.step([Request(1, seen, number=1)])[0], list)


def test_a_bundle_for_a_fixed_batch_steps_any_number_of_rows(leaky: Any, tmp_path: Path) -> None:
    bundle = read_bundle(leaky.write(tmp_path / "fixed", batch_size=4))
    sequences = Sequences(
        bundle,
        load_runtime(bundle, "onnx", {}),
        max_batch_size=64,
        max_sequences=9,
        idle_timeout_s=5.0,
    )
    seen = leaky.observe(np.random.default_rng(1), 9)
    results = sequences.step([Request(n, row(seen, n), start=True) for n in range(9)])
    outputs = leaky.step(leaky.initial_carry(9), seen)
    for n, result in enumerate(results):
        assert isinstance(result, list)
        np.testing.assert_allclose(result[1], outputs["action.joints"][n], atol=1e-6)


def test_a_stateless_step_gives_the_carry_to_go_on_with(leaky: Any, bundle_path: Path) -> None:
    bundle = read_bundle(bundle_path)
    model = CarryInAndOut(bundle, load_runtime(bundle, "onnx", {}), max_batch_size=4)
    rng = np.random.default_rng(4)
    carry = leaky.initial_carry(5)
    start = np.ones((5, 1), np.bool_)
    given = {name: np.zeros_like(value) for name, value in carry.items()}
    for _ in range(3):
        seen = leaky.observe(rng, 5)
        expected = leaky.step(carry, seen)
        request = {name: value.reshape(5, -1) for name, value in {**seen, **given}.items()}
        request["start"] = start
        # Two requests of two and three rows, more than a run takes.
        parts = [{k: v[:2] for k, v in request.items()}, {k: v[2:] for k, v in request.items()}]
        results = model.step(parts)
        for part, rows in zip(results, (slice(2), slice(2, 5)), strict=True):
            assert isinstance(part, dict), part
            for name, value in part.items():
                np.testing.assert_allclose(
                    value.reshape(expected[name][rows].shape), expected[name][rows], atol=1e-6
                )
        carry = {name: expected[f"next_{name}"] for name in carry}
        given, start = carry, np.zeros((5, 1), np.bool_)
    parts[0]["obs.goal"] = np.full((2, 1), np.inf, np.float32)
    bad, good = model.step(parts)
    assert isinstance(bad, ObservationError) and isinstance(good, dict)
