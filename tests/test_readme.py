"""Every Python example in the README and the docs runs, and every command named there exists."""

import re
import shlex
from pathlib import Path

import pytest

from nnx_ppo.cli import main
from nnx_ppo.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run_in_the_order_of_the_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = 0
    for source in blocks(page, "python"):
        exec(compile(source, str(page), "exec"), {"__name__": "example"})
        ran += 1
    assert ran == page.read_text(encoding="utf-8").count("```python")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_exist_with_their_options(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    help_texts: dict[str, str] = {}
    for source in blocks(page, "sh"):
        for line in source.replace("\\\n", " ").splitlines():
            words = shlex.split(line.rstrip("& "), comments=True)
            if words[:1] != ["nnx-ppo"]:
                continue
            assert words[1] in COMMANDS, line
            if words[1] not in help_texts:
                assert main([words[1], "--help"]) == 0
                help_texts[words[1]] = capsys.readouterr().out
            for option in (word for word in words if word.startswith("--")):
                assert option in help_texts[words[1]], line


def test_make_targets_in_the_text_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {
        target
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for source in blocks(page, "sh")
        for target in re.findall(r"^make ([\w-]+)", source, re.M)
    }
    assert {"demo", "test"} <= named
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in named)


def test_examples_that_are_called_ten_lines_are_about_that() -> None:
    export_example, loop_example = blocks(ROOT / "README.md", "python")
    for source in (export_example, loop_example):
        assert len([line for line in source.splitlines() if line.strip()]) <= 13
