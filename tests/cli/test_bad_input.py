"""Whatever is given wrongly: status 2, one clear line, and nothing left behind."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nnx_ppo.cli import main

VERIFY = ("verify", "policy", "--network", "networks_of_a_user:plain")
NETWORKS = """
import jax
from flax import nnx

from nnx_ppo.environments.policies import make_memoryless_policy
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput


class Sampling(StatefulModule):
    def __init__(self, rngs):
        self.rngs = rngs

    def __call__(self, state, obs, extras=None):
        action = obs + jax.random.normal(self.rngs(), obs.shape)
        return StatefulModuleOutput(state, action, jax.numpy.zeros(()), {})


class Sorting(StatefulModule):
    def __call__(self, state, obs, extras=None):
        return StatefulModuleOutput(state, jax.lax.linalg.eigh(
            obs[:, :, None] * obs[:, None, :])[1], jax.numpy.zeros(()), {})


def sampling(rngs):
    return Sampling(rngs)


def sorting():
    return Sorting()


def plain(rngs):
    return make_memoryless_policy(3, 1, rngs, hidden_sizes=(4, 4))


def broken():
    raise RuntimeError("the weights are not where they were")
"""


def refused(
    capsys: pytest.CaptureFixture[str], argv: Sequence[object], expected: str, *, left: Path
) -> None:
    """Run a command that must be refused and leave a directory as it was."""
    before = snapshot(left)
    assert main([str(argument) for argument in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert re.search(expected, lines[0]), lines[0]
    assert "Traceback" not in lines[0]
    assert snapshot(left) == before


def snapshot(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_size if path.is_file() else -1
        for path in directory.rglob("*")
        if "__pycache__" not in path.parts
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of a user's networks."""
    (tmp_path / "networks_of_a_user.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def change_manifest(bundle: Path, change: Callable[[dict], None]) -> None:
    file = bundle / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))


def truncate(bundle: Path) -> None:
    file = bundle / "onnx" / "policy.onnx"
    file.write_bytes(file.read_bytes()[:-10])


def alter(bundle: Path) -> None:
    file = bundle / "onnx" / "policy.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def make_newer(bundle: Path) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(format_version=99, invention={}))


def lead_out(bundle: Path) -> None:
    def change(manifest: dict) -> None:
        manifest["artefacts"]["onnx"]["entry"] = "../policy.onnx"

    change_manifest(bundle, change)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (truncate, r"policy\.onnx: .*size|policy\.onnx: .*bytes"),
        (alter, r"policy\.onnx: .*(sha256|SHA-256|hash)"),
        (make_newer, r"manifest\.json: .*version.* 99"),
        (lead_out, r"manifest\.json: .*\.\."),
        (lambda bundle: (bundle / "golden.safetensors").unlink(), r"golden\.safetensors"),
        (lambda bundle: (bundle / "manifest.json").write_text("{"), r"manifest\.json: "),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "selftest", "bench", "run"])
def test_a_damaged_bundle_is_refused(
    graph_bundle: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    damage: Callable[[Path], None],
    expected: str,
) -> None:
    shutil.copytree(graph_bundle, home / "policy")
    damage(home / "policy")
    refused(capsys, [command, "policy"], expected, left=home)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["selftest", "policy", "--runtime", "tflite"],
            "unknown runtime 'tflite'.*onnx.*stablehlo",
        ),
        (["selftest", "policy", "--runtime", ","], "--runtime names no runtime"),
        (["bench", "policy", "--batch-sizes", "0"], "0 is not a positive number"),
        (["bench", "policy", "--rate-hz", "0"], "--rate-hz: 0 is not a positive number"),
        (["bench", "policy", "--rate-hz", "nan"], "--rate-hz: nan is not a positive number"),
        (["bench", "policy", "--rate-hz", "fast"], "--rate-hz: fast is not a positive number"),
        (["run", "policy", "--rate-hz", "-5"], "rate_hz is -5"),
        (["run", "policy", "--rate-hz", "0"], "rate_hz is 0"),
        (["run", "policy", "--miss-budget", "nan"], "--miss-budget is nan; expected a share"),
        (["run", "policy", "--miss-budget", "-3"], "--miss-budget is -3.0; expected a share"),
        (["run", "policy", "--miss-budget", "5"], "--miss-budget is 5.0; expected a share"),
        (["run", "policy", "--duration-s", "-1"], "duration_s is -1"),
        (["run", "policy", "--plant", "nowhere"], "address 'nowhere'.*expected 'tcp://"),
        (["run", "policy", "--plant", "unix:///nowhere/plant"], "cannot connect.*is the simulator"),
        (["inspect", "nowhere"], "nowhere: does not exist"),
        (["verify", "policy"], "name a checkpoint, or --network"),
        (["verify", "policy", "--checkpoint", "nowhere"], "there is no directory nowhere"),
        (["verify", "policy", "--bounds", "onnx"], "'onnx' is not of the form NAME=BOUND"),
        (
            [*VERIFY, "--bounds", "onxx=1e-3"],
            "tolerances: 'onxx' is 0.001; expected numbers of at least 0 for some of",
        ),
        ([*VERIFY, "--artefacts", "onxx"], "runtimes must name artefacts of the bundle"),
        (
            [*VERIFY],
            "carry does not have the structure recorded in the bundle",
        ),
    ],
)
def test_a_wrong_request_about_a_bundle_is_refused(
    graph_bundle: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    expected: str,
) -> None:
    (home / "policy").symlink_to(graph_bundle)
    refused(capsys, argv, expected, left=home)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--network", "networks_of_a_user:sampling"], "Sampling"),
        (["--network", "networks_of_a_user:sorting"], "eigh"),
        (["--network", "networks_of_a_user:broken"], "the weights are not where they were"),
        (["--network", "networks_of_a_user:missing"], "has no 'missing'"),
        (["--network", "networks_of_nobody:plain"], "there is no module 'networks_of_nobody'"),
        (["--network", "networks_of_a_user"], "write package.module:function"),
        (["--network-arguments", '{"depth": 3}'], "depth"),
        (["--network-arguments", "depth=3"], "--network-arguments is not JSON"),
        (["--observation-shapes", '{"joints": "three"}'], r'obs\.joints is "three"'),
        (["--observation-shapes", "[4]"], "3"),
        (["--formats", "tflite"], "'tflite' is not one of stablehlo, saved_model, onnx"),
        (["--metadata", "@nowhere.json"], "cannot read 'nowhere.json'"),
        (["--metadata", '{"joint_names": 5}'], "joint_names"),
        (["--batch-size", "0"], "batch"),
        (["--control-rate-hz", "-1"], "control_rate_hz"),
        (["--disable-passes", "fold_scale"], "there is no pass 'fold_scale'; .*'take_slots'"),
        (["--out", "taken"], "taken exists; give another --out, or --overwrite"),
        (["--out", "networks_of_a_user.py/policy"], "networks_of_a_user.py"),
    ],
)
def test_an_export_that_cannot_be_done_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    (home / "taken").mkdir()
    argv = ["export", "--network", "networks_of_a_user:plain", "--observation-shapes", "[3]"]
    refused(capsys, [*argv, "--out", "policy", *options], expected, left=home)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["export", "nowhere", "--out", "policy"], "there is no directory nowhere"),
        (
            ["export", "empty", "--out", "policy"],
            "empty is no checkpoint and holds no complete one",
        ),
        (["export", "--out", "policy"], "name a checkpoint, or --network"),
        (
            ["export", "--network", "networks_of_a_user:plain", "--out", "policy"],
            "--observation-shapes has to say",
        ),
        (["train", "--out", "run"], "--environment is missing"),
        (["train", "--out", "run", "--resume"], "no complete checkpoint in run"),
        (
            ["train", "--out", "run", "--environment", "moon"],
            "no built-in environment 'moon'; there are .*swing_up",
        ),
        (
            ["train", "--out", "networks_of_a_user.py", "--environment", "swing_up"],
            "is a file; --out must be a directory",
        ),
        (
            ["train", "--out", "full", "--environment", "swing_up"],
            "full already holds a run; go on with --resume",
        ),
        (
            ["train", "--out", "run", "--environment", "swing_up", "--n-envs", "many"],
            "--n-envs: 'many'|--n-envs: invalid",
        ),
        (
            ["train", "--out", "run", "--environment", "swing_up", "--network", "a:b"],
            "there is no module 'a'",
        ),
        (["simulate", "moon"], "no built-in environment 'moon'"),
        (["simulate", "swing_up", "--address", "here"], "address 'here': expected"),
        (["demo", "--out", "full"], "full exists"),
    ],
)
def test_what_cannot_be_trained_or_found_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    (home / "empty").mkdir()
    (home / "full").mkdir()
    (home / "full" / "notes.txt").write_text("mine")
    refused(capsys, argv, expected, left=home)
