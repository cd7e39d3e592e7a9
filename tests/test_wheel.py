"""The built wheel as a robot installs it: in an empty environment, the oldest versions allowed."""

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"nnx_ppo", "export", "serving"}


def run(*command: object, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    # Without the source tree on the path, and from a directory that is not it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert done.returncode == expect, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", directory, ROOT, cwd=directory)
    (built,) = directory.glob("*.whl")
    return built


def lower_bounds(wheel: Path, extra: str) -> list[str]:
    """The oldest version that an extra allows of each requirement, as `name==version`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    oldest: dict[str, str] = {}
    for text in metadata.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        (bound,) = [s.version for s in requirement.specifier if s.operator == ">="]
        # A second, stricter line of a newer Python comes later and wins.
        oldest[requirement.name] = bound
    return [f"{name}=={version}" for name, version in oldest.items()]


@pytest.fixture(scope="session")
def robot(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that holds the wheel with `serving` at its lower bounds."""
    directory = tmp_path_factory.mktemp("robot")
    run(sys.executable, "-m", "venv", directory / "venv", cwd=directory)
    binaries = directory / "venv" / "bin"
    pins = lower_bounds(wheel, "serving")
    assert any(pin.startswith("onnxruntime==") for pin in pins)
    pip = (binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"{wheel}[serving]", *pins, cwd=directory)
    return binaries


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt")))
    assert {n.partition("/")[0] for n in names if ".dist-info/" not in n} == PACKAGES
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    templates = {n.rpartition("/")[2] for n in names if n.startswith("export/report/templates/")}
    assert templates == {"report.html.jinja", "report.css", "report.js"}
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert b"nnx-ppo = nnx_ppo.cli:main" in entry_points


def test_a_robot_installs_the_oldest_versions_and_no_training_library(
    wheel: Path, robot: Path, tmp_path: Path
) -> None:
    listed = run(robot / "python", "-m", "pip", "list", "--format=json", cwd=tmp_path).stdout
    installed = {item["name"].lower(): item["version"] for item in json.loads(listed)}
    for pin in lower_bounds(wheel, "serving"):
        name, version = pin.split("==")
        assert installed[name].startswith(version), pin
    unwanted = {"jax", "jaxlib", "flax", "optax", "tensorflow", "tensorflow-cpu", "rich", "onnx"}
    assert unwanted & set(installed) == set()


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("train", "--environment", "swing_up", "--out", "run"), "train"),
        (("export", "run", "--out", "bundle"), "export"),
        (("report", "bundle"), "export"),
        (("simulate", "swing_up"), "train"),
        (("demo",), "export"),
    ],
)
def test_a_command_whose_extra_is_missing_names_the_install_command(
    robot: Path, tmp_path: Path, command: tuple[str, ...], extra: str
) -> None:
    done = run(robot / "nnx-ppo", *command, cwd=tmp_path, expect=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert re.search(rf'not installed; .*pip install "nnx-ppo-deploy\[{extra}\]"', line)
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_onnxruntime_acts_as_the_network_did(
    robot: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    done = run(robot / "nnx-ppo", "selftest", graph_bundle, "--json", cwd=tmp_path)
    report = json.loads(done.stdout)["runtimes"]["onnx"]
    assert report["passed"] is True
    assert report["steps"] == 64
    assert max(port["max_abs_error"] for port in report["ports"]) < 1e-5


def test_a_robot_inspects_and_compares_without_rich_or_jax(
    robot: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    done = run(robot / "nnx-ppo", "inspect", graph_bundle, cwd=tmp_path)
    assert "Not verified yet" in done.stdout and "Population graph" in done.stdout
    done = run(robot / "nnx-ppo", "diff", graph_bundle, graph_bundle, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["same"] is True


def test_a_robot_times_and_runs_what_it_can_and_says_what_it_cannot(
    robot: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    done = run(robot / "nnx-ppo", "bench", graph_bundle, "--steps", "50", "--json", cwd=tmp_path)
    assert [row["runtime"] for row in json.loads(done.stdout)["results"]] == ["onnx"]
    assert "without stablehlo: " in done.stderr
    assert "without saved_model: " in done.stderr
    assert 'pip install "nnx-ppo-deploy[stablehlo]"' in done.stderr
    done = run(
        robot / "nnx-ppo", "run", graph_bundle, "--duration-s", "0.2", "--json", cwd=tmp_path
    )
    assert json.loads(done.stdout)["loop"]["steps"] > 0


def test_a_runtime_whose_extra_is_missing_names_the_install_command(
    robot: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    command = (robot / "nnx-ppo", "selftest", graph_bundle, "--runtime", "saved_model")
    (line,) = run(*command, cwd=tmp_path, expect=2).stderr.splitlines()
    assert 'pip install "nnx-ppo-deploy[saved-model]"' in line


def test_an_evaluation_without_gymnasium_names_the_install_command(
    robot: Path, graph_bundle: Path, tmp_path: Path
) -> None:
    command = (robot / "nnx-ppo", "evaluate", graph_bundle, "--env", "Pendulum-v1")
    (line,) = run(*command, cwd=tmp_path, expect=2).stderr.splitlines()
    assert 'pip install "nnx-ppo-deploy[gymnasium]"' in line


def test_export_without_its_extra_names_the_install_command(robot: Path, tmp_path: Path) -> None:
    done = run(robot / "python", "-c", "import export", cwd=tmp_path, expect=1)
    assert "nnx-ppo-deploy[export]" in done.stderr.splitlines()[-1]
