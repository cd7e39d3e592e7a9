"""What a remote policy makes of refusals and of silence; its connection does what it is told."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import serving.fleet.remote
from serving import (
    ActionError,
    FleetError,
    FleetSettings,
    ObservationError,
    RemotePolicy,
    SequenceLimitError,
    SequenceLostError,
    ServerError,
)
from serving.fleet.model_config import MANIFEST_PARAMETER, SETTINGS_PARAMETER
from serving.fleet.protocol import Connection, Inference, RefusedError, UnansweredError

OBSERVATION = {"arm": {"contact": [True, False], "position": [1.0, 2.0, 3.0]}, "goal": 0.5}
ANSWER = {
    "action.gripper": np.array([[6.0]], np.float32),
    "action.joints": np.array([[0.1, 0.2, 0.3]], np.float32),
}


class Scripted(Connection):
    """Answers with what `next` holds, an exception or outputs; by default with an action."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self.parameters = parameters
        self.sent: list[Inference] = []
        self.next: Any = ANSWER
        self.renewed = 0

    def model_parameters(self, model: str, timeout_s: float) -> dict[str, str]:
        return self.parameters

    def infer(self, request: Inference, timeout_s: float) -> dict[str, np.ndarray]:
        self.sent.append(request)
        answer, self.next = self.next, ANSWER
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def renew(self) -> None:
        self.renewed += 1

    def close(self) -> None:
        self.parameters = {}


@pytest.fixture
def connect(
    bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[RemotePolicy, Scripted]]:
    def connect(**settings: Any) -> tuple[RemotePolicy, Scripted]:
        values = dataclasses.asdict(FleetSettings(**settings))
        connection = Scripted(
            {
                MANIFEST_PARAMETER: (bundle_path / "manifest.json").read_text(),
                SETTINGS_PARAMETER: json.dumps(values),
            }
        )
        monkeypatch.setattr(serving.fleet.remote, "connect", lambda url, protocol: connection)
        return RemotePolicy("robot:1"), connection

    return connect


def flags(request: Inference) -> tuple[Any, ...]:
    return tuple(
        request.parameters.get(key) for key in ("sequence_start", "sequence_end", "step", "reset")
    )


def test_steps_are_counted_within_a_sequence(connect: Any) -> None:
    robot, connection = connect()
    for _ in range(3):
        action = robot.step(OBSERVATION)
    np.testing.assert_array_equal(action["joints"], ANSWER["action.joints"][0])
    assert [flags(request)[:3] for request in connection.sent] == [
        (True, False, 0),
        (False, False, 1),
        (False, False, 2),
    ]
    assert len({request.parameters["sequence_id"] for request in connection.sent}) == 1
    assert {name: value.shape for name, value in connection.sent[0].inputs} == {
        "obs.arm.contact": (1, 2),
        "obs.arm.position": (1, 3),
        "obs.goal": (1, 1),
    }


@pytest.mark.parametrize(
    "failure",
    [
        UnansweredError("deadline exceeded"),
        RefusedError("sequence lost: there is no carry for sequence 7"),
        RefusedError("sequence 7 must specify the START flag on the first request"),
        RefusedError("what the server says of something new"),
        {"action.gripper": ANSWER["action.gripper"]},
        {**ANSWER, "action.joints": np.zeros((1, 2), np.float32)},
        {**ANSWER, "action.joints": np.zeros((1, 3), np.float64)},
        KeyboardInterrupt(),
    ],
    ids=["silence", "evicted", "restarted", "refused", "incomplete", "short", "dtype", "interrupt"],
)
def test_a_step_whose_fate_is_unknown_loses_the_sequence_until_a_reset(
    connect: Any, failure: Any
) -> None:
    robot, connection = connect()
    robot.step(OBSERVATION)
    connection.next = failure
    with pytest.raises((SequenceLostError, ServerError, KeyboardInterrupt)):
        robot.step(OBSERVATION)
    sent = len(connection.sent)
    for _ in range(3):
        with pytest.raises(SequenceLostError, match="call reset"):
            robot.step(OBSERVATION)
    assert len(connection.sent) == sent and robot.steps == 1
    robot.reset()
    robot.step(OBSERVATION)
    first, last = connection.sent[0], connection.sent[-1]
    assert flags(last)[:3] == (True, False, 0)
    assert first.parameters["sequence_id"] != last.parameters["sequence_id"]


@pytest.mark.parametrize(
    ("message", "family"),
    [
        ("observation refused: obs.goal: nan", ObservationError),
        ("action refused: the policy gave nan for action.joints", ActionError),
    ],
)
def test_a_step_that_the_server_refused_leaves_the_carry_and_the_count(
    connect: Any, message: str, family: type[Exception]
) -> None:
    robot, connection = connect()
    robot.step(OBSERVATION)
    connection.next = RefusedError(message)
    with pytest.raises(family):
        robot.step(OBSERVATION)
    robot.step(OBSERVATION)
    assert [request.parameters["step"] for request in connection.sent] == [0, 1, 1]


def test_a_start_that_failed_is_tried_again_under_another_number(connect: Any) -> None:
    robot, connection = connect()
    connection.next = UnansweredError("refused")
    with pytest.raises(ServerError, match="gives no answer"):
        robot.step(OBSERVATION)
    connection.next = RefusedError("sequence limit: 64 are active")
    with pytest.raises(SequenceLimitError):
        robot.step(OBSERVATION)
    robot.step(OBSERVATION)
    assert [flags(request)[0] for request in connection.sent] == [True, True, True]
    assert len({request.parameters["sequence_id"] for request in connection.sent}) == 3


def test_an_observation_that_does_not_fit_is_never_sent(connect: Any) -> None:
    robot, connection = connect()
    for wrong in ({**OBSERVATION, "goal": np.nan}, {"goal": 0.5}, {**OBSERVATION, "goal": [1, 2]}):
        with pytest.raises(ObservationError):
            robot.step(wrong)
    assert connection.sent == []
    robot.step(OBSERVATION)


def test_a_reset_keeps_what_the_network_keeps_in_the_same_sequence(connect: Any) -> None:
    robot, connection = connect()
    robot.step(OBSERVATION)
    robot.reset()
    connection.next = RefusedError("observation refused: obs.goal: nan")
    with pytest.raises(ObservationError):
        robot.step(OBSERVATION)
    robot.step(OBSERVATION)
    robot.step(OBSERVATION)
    assert [flags(request)[2:] for request in connection.sent] == [
        (0, None),
        (1, True),
        (1, True),
        (2, None),
    ]


def test_a_reset_that_triton_itself_cannot_do_is_refused(connect: Any) -> None:
    robot, _ = connect(mode="implicit_state")
    robot.step(OBSERVATION)
    with pytest.raises(FleetError, match="carry.total is kept over a reset"):
        robot.reset()


def test_closing_ends_the_sequence_and_raises_nothing(connect: Any) -> None:
    robot, connection = connect()
    with robot:
        robot.step(OBSERVATION)
        connection.next = UnansweredError("gone")
    assert flags(connection.sent[-1])[:2] == (False, True)
    assert connection.parameters == {}


def test_a_model_that_is_not_ours_is_refused(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Scripted({})
    monkeypatch.setattr(serving.fleet.remote, "connect", lambda url, protocol: foreign)
    with pytest.raises(ServerError, match="was not written by nnx-ppo triton"):
        RemotePolicy("robot:1")


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9 gives no answer"):
        RemotePolicy("127.0.0.1:9", protocol="http")
