"""Policies in whole episodes of Gymnasium environments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from rnn_bundles import write_rnn

from serving import (
    EvaluationError,
    ObservationError,
    Policy,
    RuntimeUnavailableError,
    evaluate_policy,
    load_policy,
)

DICT_SHAPES = {
    "contact": ((2,), "bool"),
    "goal": ((), "float32"),
    "position": ((3,), "float32"),
}
DICT_ACTION = {"gripper": (1,), "joints": (2,)}


class Drift(gymnasium.Env):
    """Ends by itself after a number of steps that its seed decides; rewards what the action is."""

    def __init__(self, *, shortest: int = 3, longest: int = 12, drift: float = 1.0) -> None:
        self.observation_space = spaces.Dict(
            {
                "position": spaces.Box(-np.inf, np.inf, (3,), np.float64),
                "contact": spaces.MultiBinary(2),
                "goal": spaces.Box(-1.0, 1.0, (), np.float64),
            }
        )
        self.action_space = spaces.Dict(
            {
                "joints": spaces.Box(-1.0, 1.0, (2,), np.float32),
                "gripper": spaces.Box(0.0, 2.0, (1,), np.float64),
            }
        )
        self._lengths = (shortest, longest + 1)
        self._drift = drift
        self.given: list[dict[str, np.ndarray]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(*self._lengths))
        self._position = self.np_random.normal(size=3)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.given.append(action)
        self._left -= 1
        self._position = self._position + self._drift * self.np_random.normal(size=3)
        reward = float(action["joints"].sum()) + 0.1 * float(action["gripper"][0])
        return self._observation(), reward, self._left == 0, False, {}

    def _observation(self) -> dict[str, Any]:
        return {
            "position": self._position,
            "contact": self._position[:2] > 0.0,
            "goal": np.array(0.5),
        }


@pytest.fixture(scope="module")
def pendulum_policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(write_rnn(tmp_path_factory.mktemp("rnn") / "pendulum", (3,), (1,)))


@pytest.fixture(scope="module")
def drift_policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    path = tmp_path_factory.mktemp("rnn") / "drift"
    return load_policy(write_rnn(path, DICT_SHAPES, DICT_ACTION, gain=0.3))


def drift_episode(policy: Policy, environment: Drift, seed: int | None) -> tuple[float, int]:
    """Return and length of an episode run by hand, one robot and no batch."""
    session = policy.session()
    observation, _ = environment.reset(seed=seed)
    total, ended, steps = 0.0, False, 0
    while not ended:
        action = session.step(
            {
                "position": observation["position"].astype(np.float32),
                "contact": observation["contact"],
                "goal": np.float32(observation["goal"]),
            }
        )
        limited = {
            "joints": np.clip(action["joints"], -1.0, 1.0),
            "gripper": np.clip(action["gripper"], 0.0, 2.0),
        }
        observation, reward, ended, _, _ = environment.step(limited)
        total, steps = total + reward, steps + 1
    return total, steps


def test_returns_are_those_of_a_loop_by_hand(pendulum_policy: Policy) -> None:
    report = evaluate_policy(pendulum_policy, "Pendulum-v1", episodes=3, seed=5)
    environment = gymnasium.make("Pendulum-v1")
    for episode, seed in zip(report.episodes, (5, 6, 7), strict=True):
        session = pendulum_policy.session()
        observation, _ = environment.reset(seed=seed)
        total = 0.0
        for _ in range(200):
            action = np.clip(session.step(observation), -2.0, 2.0)
            observation, reward, *_ = environment.step(action)
            total += float(reward)
        assert episode.episode_return == pytest.approx(total, rel=1e-4)
        assert (episode.length, episode.terminated) == (200, False)
    assert (report.environment, report.policy, report.runtime) == ("Pendulum-v1", "rnn", "onnx")
    assert report.returns.std() > 1.0


@pytest.mark.parametrize("num_envs", [1, 3, 20])
def test_more_environments_give_the_same_episodes(drift_policy: Policy, num_envs: int) -> None:
    report = evaluate_policy(drift_policy, Drift, episodes=7, seed=11, num_envs=num_envs)
    expected = [drift_episode(drift_policy, Drift(), 11 + k) for k in range(7)]
    assert report.num_envs == min(num_envs, 7)
    assert report.lengths.tolist() == [length for _, length in expected]
    np.testing.assert_allclose(report.returns, [total for total, _ in expected], rtol=1e-5)
    assert all(episode.terminated for episode in report.episodes)
    assert len(set(report.lengths.tolist())) > 2  # rows do not end together


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_environments_that_reset_themselves_equal_single_ones_by_seed(
    drift_policy: Policy, mode: AutoresetMode
) -> None:
    vector = SyncVectorEnv([Drift] * 3, autoreset_mode=mode)
    report = evaluate_policy(drift_policy, vector, episodes=8, seed=20)
    expected: dict[int, tuple[float, int]] = {}
    for row in range(3):
        environment = Drift()
        for number, episode in enumerate(range(row, 8, 3)):
            seed = 20 + row if number == 0 else None
            expected[episode] = drift_episode(drift_policy, environment, seed)
    assert report.lengths.tolist() == [expected[k][1] for k in range(8)]
    np.testing.assert_allclose(report.returns, [expected[k][0] for k in range(8)], rtol=1e-5)
    vector.step(vector.action_space.sample())  # still open


def test_a_vector_environment_of_gymnasiums_making_is_taken(pendulum_policy: Policy) -> None:
    vector = gymnasium.make_vec(
        "Pendulum-v1",
        num_envs=2,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
    )
    together = evaluate_policy(pendulum_policy, vector, episodes=3, seed=1)
    apart = evaluate_policy(pendulum_policy, gymnasium.make("Pendulum-v1"), episodes=3, seed=1)
    np.testing.assert_allclose(together.returns, apart.returns, rtol=1e-3)
    vector.close()


def test_an_environment_that_was_given_is_left_open_for_the_caller(drift_policy: Policy) -> None:
    closed = []

    class Watched(Drift):
        def close(self) -> None:
            closed.append(self)

    environment = Watched()
    evaluate_policy(drift_policy, environment, episodes=2)
    assert closed == []
    evaluate_policy(drift_policy, Watched, episodes=2, num_envs=2)
    assert len(closed) == 2


def test_episodes_are_cut_after_the_steps_asked_for(drift_policy: Policy) -> None:
    report = evaluate_policy(drift_policy, Drift, episodes=6, seed=0, max_steps=5, num_envs=2)
    whole = evaluate_policy(drift_policy, Drift, episodes=6, seed=0)
    assert report.lengths.tolist() == [min(length, 5) for length in whole.lengths]
    assert [episode.terminated for episode in report.episodes] == [
        length <= 5 for length in whole.lengths
    ]


def test_actions_arrive_clipped_in_the_spaces_dtype(tmp_path: Path) -> None:
    policy = load_policy(write_rnn(tmp_path / "rnn", DICT_SHAPES, DICT_ACTION, gain=20.0))
    environment = Drift()
    report = evaluate_policy(policy, environment, episodes=3)
    joints = np.stack([action["joints"] for action in environment.given])
    gripper = np.stack([action["gripper"] for action in environment.given])
    assert (joints.dtype, gripper.dtype) == (np.float32, np.float64)
    assert joints.min() == -1.0 and joints.max() == 1.0 and gripper.min() == 0.0
    edges = np.isin(joints, [-1.0, 1.0]).sum() + np.isin(gripper, [0.0, 2.0]).sum()
    assert report.clipped_share == pytest.approx(edges / (joints.size + gripper.size))
    assert 0.5 < report.clipped_share < 1.0


def test_actions_are_rescaled_from_minus_one_and_one_to_the_bounds(drift_policy: Policy) -> None:
    clipped, rescaled = Drift(drift=0.0), Drift(drift=0.0)
    evaluate_policy(drift_policy, clipped, episodes=1, seed=4)
    evaluate_policy(drift_policy, rescaled, episodes=1, seed=4, actions="rescale")
    for before, after in zip(clipped.given, rescaled.given, strict=True):
        np.testing.assert_allclose(after["joints"], before["joints"], rtol=1e-6)  # [-1, 1] already
        if 0.0 < before["gripper"][0] < 1.0:
            np.testing.assert_allclose(after["gripper"], before["gripper"] + 1.0, rtol=1e-6)


def test_scale_and_limits_that_the_robot_applies_are_applied(tmp_path: Path) -> None:
    metadata = {"action_scale": 0.5, "action_offset": 0.25, "action_low": -0.3}
    plain = load_policy(write_rnn(tmp_path / "plain", DICT_SHAPES, DICT_ACTION, gain=0.3))
    scaled = load_policy(
        write_rnn(tmp_path / "scaled", DICT_SHAPES, DICT_ACTION, gain=0.3, metadata=metadata)
    )
    done = load_policy(
        write_rnn(
            tmp_path / "done",
            DICT_SHAPES,
            DICT_ACTION,
            gain=0.3,
            metadata={**metadata, "action_applied_by": "policy"},
        )
    )
    given = {}
    for name, policy in {"plain": plain, "scaled": scaled, "done": done}.items():
        environment = Drift()
        evaluate_policy(policy, environment, episodes=2)
        given[name] = np.stack([action["joints"] for action in environment.given])
    inside = np.abs(given["plain"]) < 1.0
    expected = np.clip(0.5 * given["plain"] + 0.25, -0.3, 1.0)
    np.testing.assert_allclose(given["scaled"][inside], expected[inside], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(given["done"], given["plain"])


def test_a_real_mechanism_of_gymnasium_in_mujoco_is_balanced_badly(tmp_path: Path) -> None:
    policy = load_policy(write_rnn(tmp_path / "rnn", (4,), (1,)))
    report = evaluate_policy(policy, "InvertedPendulum-v5", episodes=4, seed=2, num_envs=2)
    environment = gymnasium.make("InvertedPendulum-v5")
    for episode, seed in zip(report.episodes, range(2, 6), strict=True):
        session = policy.session()
        observation, _ = environment.reset(seed=seed)
        length, ended = 0, False
        while not ended:
            action = np.clip(session.step(observation.astype(np.float32)), -3.0, 3.0)
            observation, _, ended, _, _ = environment.step(action)
            length += 1
        assert (episode.length, episode.terminated) == (length, True)


def test_the_caller_may_convert_what_does_not_fit(tmp_path: Path) -> None:
    policy = load_policy(write_rnn(tmp_path / "rnn", (2,), (1,)))
    report = evaluate_policy(
        policy,
        "CartPole-v1",
        episodes=4,
        num_envs=2,
        observe=lambda observation: observation[:, 2:],
        act=lambda action: (action[:, 0] > 0.0).astype(np.int64),
    )
    assert 8 <= report.lengths.min() < 200
    assert report.clipped_share == 0.0


def test_a_policy_of_one_batch_size_needs_as_many_environments(tmp_path: Path) -> None:
    policy = load_policy(write_rnn(tmp_path / "rnn", DICT_SHAPES, DICT_ACTION, batch_size=2))
    report = evaluate_policy(policy, Drift, episodes=4, num_envs=2)
    assert len(report.episodes) == 4
    with pytest.raises(Exception, match="exported for a batch of 2"):
        evaluate_policy(policy, Drift, episodes=4)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("CartPole-v1", r"obs: the policy takes float32\[3\], the environment gives float32\[4\]"),
        ("Acrobot-v1", r"obs: .*float32\[6\]"),
        ("NoSuchThing-v0", "NoSuchThing-v0: Gymnasium cannot make it"),
        (Drift, r"obs: the policy takes float32\[3\], the environment gives a Dict of .*position"),
        (3, "the environment is a int"),
    ],
)
def test_environments_that_do_not_fit_are_refused(
    pendulum_policy: Policy, environment: Any, message: str
) -> None:
    with pytest.raises(EvaluationError, match=message):
        evaluate_policy(pendulum_policy, environment, episodes=1)


def test_discrete_actions_are_refused(tmp_path: Path) -> None:
    policy = load_policy(write_rnn(tmp_path / "rnn", (4,), (1,)))
    with pytest.raises(EvaluationError, match=r"action: the environment takes Discrete\(2\), but"):
        evaluate_policy(policy, "CartPole-v1", episodes=1)


def test_an_action_of_another_width_is_refused(tmp_path: Path) -> None:
    policy = load_policy(write_rnn(tmp_path / "rnn", (3,), (2,)))
    expected = r"action: the policy gives float32\[2\], the environment takes float32\[1\]"
    with pytest.raises(EvaluationError, match=expected):
        evaluate_policy(policy, "Pendulum-v1", episodes=1)


def test_keys_that_only_one_side_has_are_refused(tmp_path: Path) -> None:
    shapes = {**DICT_SHAPES, "speed": ((3,), "float32")}
    policy = load_policy(write_rnn(tmp_path / "rnn", shapes, DICT_ACTION))
    with pytest.raises(EvaluationError, match=r"obs: the bundle has .*'speed'.*the environment"):
        evaluate_policy(policy, Drift, episodes=1)


def test_an_integer_is_no_float_and_must_fit_the_ports_dtype(tmp_path: Path) -> None:
    class Counter(Drift):
        def __init__(self, dtype: type = np.int64, value: int = 7) -> None:
            super().__init__()
            self.observation_space = spaces.Dict({"n": spaces.Box(0, 2**40, (1,), dtype)})
            self._value = value

        def _observation(self) -> dict[str, Any]:
            return {"n": np.array([self._value])}

    floats = load_policy(write_rnn(tmp_path / "f", {"n": ((1,), "float32")}, DICT_ACTION))
    integers = load_policy(write_rnn(tmp_path / "i", {"n": ((1,), "int32")}, DICT_ACTION))
    assert evaluate_policy(integers, Counter, episodes=1).episodes[0].length > 0
    with pytest.raises(EvaluationError, match=r"obs.n: the policy takes float32\[1\].*int64\[1\]"):
        evaluate_policy(floats, Counter, episodes=1)
    large = {"value": 2**33}
    with pytest.raises(EvaluationError, match=r"obs.n: \[\[8589934592\]\] does not fit int32"):
        evaluate_policy(integers, Counter, episodes=1, environment_arguments=large)


def test_values_that_are_not_finite_end_an_evaluation(drift_policy: Policy) -> None:
    with pytest.raises(ObservationError, match=r"obs.position: .*inf"):
        evaluate_policy(drift_policy, lambda: Drift(drift=1e300), episodes=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, "episodes is 0"),
        ({"num_envs": -1}, "num_envs is -1"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"seed": -3}, "seed is -3"),
        ({"actions": "squash"}, "actions is 'squash'"),
    ],
)
def test_wrong_arguments_are_refused(
    drift_policy: Policy, arguments: dict[str, Any], message: str, types_unchecked: None
) -> None:
    with pytest.raises(EvaluationError, match=message):
        evaluate_policy(drift_policy, Drift, **arguments)


def test_arguments_that_go_with_another_kind_of_environment_are_refused(
    drift_policy: Policy,
) -> None:
    with pytest.raises(EvaluationError, match="num_envs is 2, but one environment was given"):
        evaluate_policy(drift_policy, Drift(), num_envs=2)
    with pytest.raises(EvaluationError, match="has been made already"):
        evaluate_policy(drift_policy, Drift(), environment_arguments={"drift": 0.0})
    with pytest.raises(EvaluationError, match="max_steps is given, but the vector environment"):
        evaluate_policy(drift_policy, SyncVectorEnv([Drift]), episodes=1, max_steps=3)


def test_unbounded_actions_cannot_be_rescaled_to(drift_policy: Policy) -> None:
    class Unbounded(Drift):
        def __init__(self) -> None:
            super().__init__()
            self.action_space["joints"] = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    assert evaluate_policy(drift_policy, Unbounded, episodes=1).mean_return != 0.0
    with pytest.raises(EvaluationError, match=r"action.joints: actions have no bounds"):
        evaluate_policy(drift_policy, Unbounded, episodes=1, actions="rescale")


def test_without_gymnasium_the_install_command_is_named(
    drift_policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(RuntimeUnavailableError, match=r'pip install "nnx-ppo-deploy\[gymnasium\]"'):
        evaluate_policy(drift_policy, "Pendulum-v1")


def test_the_report_has_the_statistics(drift_policy: Policy) -> None:
    report = evaluate_policy(drift_policy, Drift, episodes=5, seed=3)
    data = report.to_json()
    assert data["mean_return"] == pytest.approx(np.mean(data["returns"]))
    assert data["standard_error"] == pytest.approx(np.std(data["returns"], ddof=1) / np.sqrt(5))
    assert (data["min_return"], data["max_return"]) == (min(data["returns"]), max(data["returns"]))
    assert (data["episodes"], data["terminated"], data["seed"]) == (5, 5, 3)
    assert data["mean_length"] == np.mean(data["lengths"])
    single = evaluate_policy(drift_policy, Drift, episodes=1)
    assert single.to_json()["standard_error"] is None
