import json
import subprocess
import sys
from pathlib import Path

import pytest

import nnx_ppo
from nnx_ppo.cli import app, main
from nnx_ppo.cli.app import COMMANDS, DONE, ERROR, INTERRUPTED
from nnx_ppo.cli.errors import CommandError, describe
from serving import ServingError


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == DONE
    assert capsys.readouterr().out == f"nnx-ppo {nnx_ppo.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_and_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == DONE
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"  nnx-ppo {command}" in text.split("examples:")[1]
    assert "--json" in text


@pytest.mark.parametrize(
    "argv", [[], ["fly"], ["bench"], ["bench", "--steps", "0", "x"], ["train", "--out"]]
)
def test_wrong_use_is_one_line_and_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ERROR
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("nnx-ppo")
    assert "error: " in captured.err


def test_an_interrupt_is_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("nnx_ppo.cli.inspect.run", interrupt)
    assert main(["inspect", str(tmp_path)]) == INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


def test_an_unforeseen_error_is_one_line_unless_debug_asks_for_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ValueError("the message\nruns over two lines")

    monkeypatch.setattr("nnx_ppo.cli.inspect.run", fail)
    assert main(["inspect", "x"]) == ERROR
    assert capsys.readouterr().err == (
        "nnx-ppo inspect: error: ValueError: the message runs over two lines"
        " (--debug shows where)\n"
    )
    assert main(["inspect", "x", "--debug"]) == ERROR
    assert "Traceback" in capsys.readouterr().err


def test_what_a_library_prints_stays_out_of_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chatter(arguments: object, output: app.Output) -> int:
        print("a library says hello")
        output.result({"answer": 1}, "1")
        return DONE

    monkeypatch.setattr("nnx_ppo.cli.inspect.run", chatter)
    assert main(["inspect", "x", "--json"]) == DONE
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"answer": 1}
    assert "a library says hello" in captured.err


def test_a_missing_extra_names_the_install_command() -> None:
    error = ModuleNotFoundError("No module named 'flax'", name="flax.nnx")
    assert describe(error, "train") == (
        "this needs flax, which is not installed; install it with: "
        'pip install "nnx-ppo-deploy[train]"'
    )


def test_own_errors_speak_for_themselves_and_others_name_their_type() -> None:
    assert describe(CommandError("say this")) == "say this"
    assert describe(ServingError("or  this")) == "or this"
    assert describe(KeyError("obs")) == "KeyError: obs"
    assert describe(RuntimeError()) == "RuntimeError"


def test_the_module_runs_as_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "nnx_ppo.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"nnx-ppo {nnx_ppo.__version__}\n"
