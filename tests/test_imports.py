"""Imports point one way: export -> nnx_ppo and serving; the others to nobody."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("nnx_ppo", "export", "serving")

ALLOWED = {
    "nnx_ppo": {"nnx_ppo"},
    "export": {"export", "nnx_ppo", "serving"},
    "serving": {"serving"},
    # The command line ties everything together.
    "nnx_ppo/cli": set(PACKAGES),
}
# Module -> the only file below serving/ that may import it; it is loaded when a policy asks for it.
RUNTIME_ONLY = {
    "jax": "serving/runtimes/stablehlo.py",
    "tensorflow": "serving/runtimes/saved_model.py",
}
TRAINING_ONLY = {"jax", "jaxlib", "flax", "optax", "tensorflow", "jaxtyping", "tf2onnx", "onnx"}
# Loaded by the functions of `serving` that need them, when they are called.
SIMULATORS = {"gymnasium", "mujoco"}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full"
            yield node.module or ""


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def area(file: Path) -> str:
    name = file.relative_to(ROOT)
    return "nnx_ppo/cli" if name.parts[:2] == ("nnx_ppo", "cli") else name.parts[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files_of(package)
        for module in imported_modules(ast.parse(file.read_text(encoding="utf-8")))
        if module.partition(".")[0] in PACKAGES
        and module.partition(".")[0] not in ALLOWED[area(file)]
    ]
    assert wrong == []


def test_nothing_imports_the_command_line() -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for package in PACKAGES
        for file in files_of(package)
        if area(file) != "nnx_ppo/cli"
        for module in imported_modules(ast.parse(file.read_text(encoding="utf-8")))
        if module.startswith("nnx_ppo.cli")
    ]
    assert wrong == []


def test_serving_leaves_training_libraries_to_the_runtimes_that_need_them() -> None:
    wrong = []
    for file in files_of("serving"):
        name = str(file.relative_to(ROOT))
        for module in imported_modules(ast.parse(file.read_text(encoding="utf-8"))):
            top = module.partition(".")[0]
            if top in TRAINING_ONLY and RUNTIME_ONLY.get(top) != name:
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh process holds after a statement."""
    code = (
        f"{statement}\nimport sys\nprint()\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement",
    [
        "import nnx_ppo",
        "import nnx_ppo.cli",
        "import serving",
        "from nnx_ppo.cli.app import main; main(['--version'])",
    ],
)
def test_light_imports_bring_no_training_library(statement: str) -> None:
    assert modules_after(statement) & (TRAINING_ONLY | SIMULATORS) == set()


@pytest.mark.parametrize(
    "command",
    ["inspect", "diff", "selftest", "run", "replay", "bench", "triton", "serve", "evaluate"],
)
def test_a_robots_commands_start_without_training_libraries(command: str) -> None:
    statement = f"from nnx_ppo.cli.app import main; assert main(['{command}', '--help']) == 0"
    assert modules_after(statement) & (TRAINING_ONLY | SIMULATORS | {"rich"}) == set()
