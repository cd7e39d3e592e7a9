from pathlib import Path

import pytest

from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.references import import_function, read_json_object


def test_imports_the_function_that_is_named() -> None:
    assert import_function("nnx_ppo.cli.references:import_function") is import_function


def test_imports_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "factory_of_a_user.py").write_text("def make():\n    return 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert import_function("factory_of_a_user:make")() == 7


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("make", "write package.module:function"),
        ("no_such_module:make", "there is no module 'no_such_module'"),
        ("nnx_ppo.cli.errors:make", "'nnx_ppo.cli.errors' has no 'make'"),
        ("nnx_ppo.cli.errors:INSTALL", "is a str, not a function"),
    ],
)
def test_a_reference_that_leads_nowhere_is_explained(reference: str, expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        import_function(reference)


def test_reads_json_and_files_with_json(tmp_path: Path) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"a": 1}')
    assert read_json_object('{"a": [1, 2]}', option="--x") == {"a": [1, 2]}
    assert read_json_object(f"@{file}", option="--x") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a: 1}", "--x is not JSON"),
        ("[1]", "--x is a JSON list"),
        ("@/nowhere/file.json", "cannot read '/nowhere/file.json'"),
    ],
)
def test_what_is_no_json_object_is_explained(text: str, expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        read_json_object(text, option="--x")
