"""The same sections on a terminal, in a pipe, and for a machine."""

import io
import json
import re

import pytest

from nnx_ppo.cli.display import as_text, show
from nnx_ppo.cli.output import Output
from serving.overview import Facts, Note, Table, Verdict

SECTIONS = [
    Verdict("failed", "Parity FAILED: onnx", ["Worst error 0.1 in [bold]action[/bold]."]),
    Facts("Policy [red]", [("rate", "50 Hz"), ("carry", "none")]),
    [Note("safe action", "Not recorded.", "attention"), Note("action", "Sent as it is.")],
    Table("Ports", ("tensor", "dtype", "numbers"), [("obs", "float32", "8")], frozenset(["dtype"])),
    Table("Nothing", ("a",), []),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, *, as_json: bool = False) -> str:
    show(Output(as_json=as_json, results=stream, notes=io.StringIO()), {"answer": 1}, SECTIONS)
    return stream.getvalue()


def test_a_pipe_gets_plain_text() -> None:
    text = shown(io.StringIO())
    assert text == as_text(SECTIONS) + "\n"
    assert "\x1b" not in text and "│" not in text
    assert text.splitlines()[:4] == [
        "Parity FAILED: onnx",
        "  Worst error 0.1 in [bold]action[/bold].",
        "",
        "Policy [red]",
    ]
    assert "  safe action  ! Not recorded." in text
    assert "  tensor  dtype    numbers" in text
    assert "Nothing" not in text


def test_a_machine_gets_json_on_a_terminal_too() -> None:
    assert json.loads(shown(Terminal(), as_json=True)) == {"answer": 1}


def test_a_terminal_gets_colour_and_names_stay_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(Terminal())
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    for said in ("Parity FAILED: onnx", "[bold]action[/bold]", "Policy [red]", "float32"):
        assert said in plain
    assert "Nothing" not in plain


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert shown(Terminal()) == as_text(SECTIONS) + "\n"
