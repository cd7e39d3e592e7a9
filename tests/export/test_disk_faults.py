"""A disk that refuses: one clear error, the old bundle whole, nothing left behind."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import export_networks
import pytest

from export import ParityError, export_policy, verify_parity
from nnx_ppo.cli import main
from serving import BundleError, read_bundle

HELPERS = Path(export_networks.__file__).parent

# A limit on the size of files fails in the middle of a write, also for writers in C++.
SMALL_FILES = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import export_networks
from export import ParityError, export_policy, verify_parity
from serving import BundleError
network, observation = export_networks.make("mlp")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    export_policy(network, observation, sys.argv[2], formats=[sys.argv[3]], overwrite=True)
except BundleError as error:
    print(error)
"""


def entries(directory):
    return sorted(path.name for path in directory.iterdir())


def slow(value, *, unless):
    return pytest.param(value, marks=[] if unless else [pytest.mark.slow])


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path, monkeypatch, code):
    def refuse(path, *args, **kwargs):
        raise OSError(code, os.strerror(code), str(path))

    network, observation = export_networks.make("mlp")
    monkeypatch.setattr(os, "mkdir", refuse)
    for target in (tmp_path / "policy", tmp_path / "new" / "policy"):
        with pytest.raises(BundleError, match=f"policy: cannot be written: .*{os.strerror(code)}"):
            export_policy(network, observation, target, formats=["stablehlo"])
    assert entries(tmp_path) == []


def test_a_target_below_a_file_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    network, observation = export_networks.make("mlp")
    with pytest.raises(BundleError, match="policy: cannot be written: .*Not a directory"):
        export_policy(network, observation, tmp_path / "file" / "policy", formats=["stablehlo"])
    assert entries(tmp_path) == ["file"]


@pytest.mark.parametrize("after", [slow(n, unless=n in (0, 3, 7)) for n in range(8)])
def test_a_disk_that_fills_up_at_any_file_keeps_the_old_bundle(tmp_path, monkeypatch, after):
    network, observation = export_networks.make("mlp")
    target = tmp_path / "policy"
    export_policy(network, observation, target, formats=["stablehlo"], name="old")
    real, written = io.open, []

    def fill_up(file, mode="r", *args, **kwargs):
        if "w" in mode and ".partial" in str(file):
            written.append(file)
            if len(written) > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        return real(file, mode, *args, **kwargs)

    monkeypatch.setattr(io, "open", fill_up)
    options = {"formats": ["stablehlo"], "overwrite": True, "name": "new"}
    if after < 7:
        with pytest.raises(BundleError, match="policy: cannot be written: .*No space left"):
            export_policy(network, observation, target, **options)
    else:
        # Artefact, card, carry, golden trajectory, structure, manifest, report: these are all.
        export_policy(network, observation, target, **options)
    monkeypatch.undo()
    assert read_bundle(target).manifest.name == ("old" if after < 7 else "new")
    assert entries(tmp_path) == ["policy"]


@pytest.mark.parametrize(
    "format_name", [slow(n, unless=n == "onnx") for n in ("stablehlo", "saved_model", "onnx")]
)
def test_a_write_that_fails_half_way_keeps_the_old_bundle(tmp_path, format_name):
    network, observation = export_networks.make("mlp")
    target = tmp_path / "policy"
    export_policy(network, observation, target, formats=["stablehlo"], name="old")
    command = [sys.executable, "-c", SMALL_FILES, str(HELPERS), str(target), format_name, "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "policy: cannot be written" in done.stdout
    assert read_bundle(target).manifest.name == "old"
    assert entries(tmp_path) == ["policy"]


def test_the_command_reports_a_full_disk_with_status_2(tmp_path, monkeypatch, capsys):
    real = io.open

    def fill_up(file, mode="r", *args, **kwargs):
        if "w" in mode and ".partial" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        return real(file, mode, *args, **kwargs)

    monkeypatch.setattr(io, "open", fill_up)
    network = "nnx_ppo.networks.factories:make_mlp_actor_critic"
    arguments = (
        '{"obs_size": 3, "action_size": 1, "actor_hidden_sizes": [4], "critic_hidden_sizes": [4]}'
    )
    command = ["export", "--network", network, "--network-arguments", arguments]
    options = ["--observation-shapes", "[3]", "--formats", "stablehlo"]
    assert main([*command, *options, "--out", str(tmp_path / "policy")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert "policy: cannot be written" in captured.err and "No space left" in captured.err
    assert entries(tmp_path) == []


def test_a_report_that_cannot_be_written_says_how_to_do_without(tmp_path, monkeypatch):
    network, observation = export_networks.make("mlp")
    bundle = export_policy(network, observation, tmp_path / "policy", formats=["stablehlo"])
    before = entries(tmp_path / "policy")

    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ParityError, match="report cannot be written into .*policy.*write=False"):
        verify_parity(bundle, network, steps=5, batch_sizes=[1])
    assert entries(tmp_path / "policy") == before
    assert verify_parity(bundle, network, steps=5, batch_sizes=[1], write=False).passed
