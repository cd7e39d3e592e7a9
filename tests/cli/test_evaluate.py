"""`nnx-ppo evaluate` on bundles and environments of every kind."""

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rnn_bundles import write_rnn

from nnx_ppo.cli import main
from nnx_ppo.environments import SwingUpDelayed
from nnx_ppo.wrappers.gymnasium_view import GymnasiumView
from serving import load_policy


@pytest.fixture(scope="module")
def pendulum_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rnn(tmp_path_factory.mktemp("rnn") / "policy", (3,), (1,))


def evaluate(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> dict[str, Any]:
    assert main(["evaluate", *map(str, argv), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_returns_of_a_registered_environment(
    pendulum_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (pendulum_bundle, "--env", "Pendulum-v1", "--episodes", 4, "--seed", 3)
    one = evaluate(capsys, *arguments)
    many = evaluate(capsys, *arguments, "--num-envs", 4)
    assert (one["environment"], one["episodes"], one["lengths"]) == ("Pendulum-v1", 4, [200] * 4)
    np.testing.assert_allclose(one["returns"], many["returns"], rtol=1e-3)
    assert (one["num_envs"], many["num_envs"], one["passed"]) == (1, 4, True)
    assert main(["evaluate", *map(str, arguments)]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"mean return +{one['mean_return']:.2f} \+- \d", text)


def test_a_return_below_the_one_asked_for_is_exit_status_1(
    pendulum_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (pendulum_bundle, "--env", "Pendulum-v1", "--episodes", 1, "--min-return")
    assert evaluate(capsys, *arguments, -1e6)["passed"] is True
    assert evaluate(capsys, *arguments, -1.0, status=1)["passed"] is False
    assert main(["evaluate", *map(str, arguments), "-1.0"]) == 1
    assert "too low" in capsys.readouterr().out


def test_a_built_in_environment_by_its_name(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = evaluate(
        capsys,
        *(graph_bundle, "--env", "swing_up_delayed", "--env-arguments", '{"delay_steps": 2}'),
        *("--episodes", 1, "--seed", 5, "--max-steps", 100),
    )
    view = GymnasiumView(SwingUpDelayed(delay_steps=2))
    session = load_policy(graph_bundle).session()
    observation, _ = view.reset(seed=5)
    total = 0.0
    for _ in range(100):
        observation, reward, *_ = view.step(session.step(observation))
        total += reward
    assert data["returns"] == [pytest.approx(total, rel=1e-4)]
    assert data["lengths"] == [100]


def test_a_factory_of_ones_own(
    pendulum_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own_pendulum.py").write_text(
        "import gymnasium\n"
        "def make_env(gravity=10.0):\n"
        "    return gymnasium.make('Pendulum-v1', g=gravity, max_episode_steps=50)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = (pendulum_bundle, "--env", "own_pendulum:make_env", "--episodes", 2)
    heavy = evaluate(capsys, *arguments)
    light = evaluate(capsys, *arguments, "--env-arguments", '{"gravity": 0.1}')
    assert heavy["lengths"] == light["lengths"] == [50, 50]
    assert heavy["returns"] != light["returns"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--env", "CartPole-v1"), "obs: the policy takes float32[3]"),
        (("--env", "NoSuch-v0"), "NoSuch-v0: Gymnasium cannot make it"),
        (("--env", "no_such"), "there is no environment 'no_such'; Gymnasium's have a version"),
        (("--env", "no_such:make"), "there is no module 'no_such'"),
        (("--env", "Pendulum-v1", "--episodes", "0"), "episodes is 0"),
        (("--env", "Pendulum-v1", "--env-arguments", "[1]"), "--env-arguments is a JSON list"),
        (("--env", "Pendulum-v1", "--runtime", "c"), "no artefact for the runtime 'c'"),
        ((), "--env"),
    ],
)
def test_wrong_use_is_one_line_and_exit_status_2(
    pendulum_bundle: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    assert main(["evaluate", str(pendulum_bundle), *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert message in line


def test_discrete_actions_are_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_rnn(tmp_path / "policy", (4,), (1,))
    assert isinstance(gymnasium.make("CartPole-v1").action_space, gymnasium.spaces.Discrete)
    assert main(["evaluate", str(bundle), "--env", "CartPole-v1"]) == 2
    assert "takes Discrete(2), but a policy gives continuous actions" in capsys.readouterr().err
