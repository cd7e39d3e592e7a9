import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from serving import BundleError, BundleWriter, files, read_bundle
from serving.manifest import Artefact


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def put_model(writer: BundleWriter, data: bytes = b"model") -> None:
    (writer.path / "onnx").mkdir()
    (writer.path / "onnx" / "policy.onnx").write_bytes(data)


@pytest.fixture
def parts(leaky, bundle_path):
    return leaky.manifest(), read_bundle(bundle_path).initial_carry, leaky.golden()


def test_a_commit_moves_a_complete_bundle_to_its_target(parts, tmp_path):
    with BundleWriter(tmp_path / "policy") as writer:
        put_model(writer)
        assert not (tmp_path / "policy").exists()
        bundle = writer.commit(*parts)
    assert bundle.path == tmp_path / "policy"
    assert entries(tmp_path) == ["policy"]
    assert bundle.manifest == read_bundle(tmp_path / "policy").manifest
    assert [f.path for f in bundle.manifest.artefacts["onnx"].files] == ["onnx/policy.onnx"]
    assert [f.size for f in bundle.manifest.artefacts["onnx"].files] == [5]
    assert [f.path for f in bundle.manifest.files] == [
        "initial_carry.safetensors",
        "golden.safetensors",
    ]


def test_files_of_a_directory_artefact_are_all_listed(parts, tmp_path):
    manifest, carry, golden = parts
    artefact = Artefact(format="saved_model", flavour="portable", entry="saved_model")
    manifest = msgspec.structs.replace(manifest, artefacts={"saved_model": artefact})
    with BundleWriter(tmp_path / "policy") as writer:
        (writer.path / "saved_model" / "variables").mkdir(parents=True)
        (writer.path / "saved_model" / "assets").mkdir()
        (writer.path / "saved_model" / "saved_model.pb").write_bytes(b"x")
        (writer.path / "saved_model" / "variables" / "variables.index").write_bytes(b"y")
        (writer.path / "README.md").write_text("a card")
        bundle = writer.commit(manifest, carry, golden)
    assert [file.path for file in bundle.manifest.artefacts["saved_model"].files] == [
        "saved_model/saved_model.pb",
        "saved_model/variables/variables.index",
    ]
    assert (tmp_path / "policy" / "README.md").read_text() == "a card"


def test_a_bundle_is_as_readable_as_other_files_of_the_user(parts, tmp_path):
    with BundleWriter(tmp_path / "policy") as writer:
        put_model(writer)
        writer.commit(*parts)
    (tmp_path / "plain").mkdir()
    mode = (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "policy").stat().st_mode == mode


def test_missing_parents_are_made(parts, tmp_path):
    with BundleWriter(tmp_path / "a" / "b" / "policy") as writer:
        put_model(writer)
        writer.commit(*parts)
    assert read_bundle(tmp_path / "a" / "b" / "policy").manifest.name == "leaky"


def test_an_exception_leaves_nothing_behind_not_even_parents(tmp_path):
    with (
        pytest.raises(RuntimeError, match="lowering failed"),
        BundleWriter(tmp_path / "a" / "b" / "policy") as writer,
    ):
        put_model(writer)
        raise RuntimeError("lowering failed")
    assert entries(tmp_path) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), BundleWriter(tmp_path / "policy") as writer:
        put_model(writer)
        raise KeyboardInterrupt
    assert entries(tmp_path) == []


def test_leaving_without_a_commit_leaves_nothing_behind(tmp_path):
    with BundleWriter(tmp_path / "policy") as writer:
        put_model(writer)
    assert entries(tmp_path) == []
    with pytest.raises(BundleError, match="is not being written"):
        writer.path  # noqa: B018


@pytest.mark.parametrize("fault", ["carry", "golden", "manifest", "model"])
def test_a_commit_that_a_reader_would_refuse_leaves_nothing_behind(parts, tmp_path, fault):
    manifest, carry, golden = parts
    if fault == "carry":
        carry = {**carry, "carry.count": np.zeros(2, np.int32)}
    if fault == "golden":
        golden = {**golden, "reset": golden["reset"][:-1]}
    if fault == "manifest":
        manifest = msgspec.structs.replace(manifest, control_rate_hz=-1.0)
    with pytest.raises(BundleError), BundleWriter(tmp_path / "policy") as writer:
        if fault != "model":
            put_model(writer)
        writer.commit(manifest, carry, golden)
    assert entries(tmp_path) == []


def test_a_full_disk_is_reported_and_leaves_nothing_behind(parts, tmp_path, monkeypatch):
    def fail(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "sync_tree", fail)
    with (
        pytest.raises(BundleError, match="policy: cannot be written: .*No space left"),
        BundleWriter(tmp_path / "policy") as writer,
    ):
        put_model(writer)
        writer.commit(*parts)
    assert entries(tmp_path) == []


def test_an_existing_target_is_refused_before_any_work(parts, bundle_path):
    before = entries(bundle_path.parent)
    with pytest.raises(BundleError, match="leaky: exists already"):
        BundleWriter(bundle_path).__enter__()
    assert entries(bundle_path.parent) == before


def test_a_target_that_appears_meanwhile_is_not_overwritten(parts, tmp_path):
    with (
        pytest.raises(BundleError, match="exists already"),
        BundleWriter(tmp_path / "policy") as writer,
    ):
        put_model(writer)
        (tmp_path / "policy").mkdir()
        (tmp_path / "policy" / "theirs").write_text("x")
        writer.commit(*parts)
    assert entries(tmp_path) == ["policy"] and entries(tmp_path / "policy") == ["theirs"]


@pytest.mark.parametrize("exchange", [True, False])
def test_overwriting_replaces_the_whole_bundle(parts, own_bundle, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    (own_bundle / "parity.json").write_text("of the old one")
    with BundleWriter(own_bundle, overwrite=True) as writer:
        put_model(writer, b"newer model")
        writer.commit(*parts)
    assert (own_bundle / "onnx" / "policy.onnx").read_bytes() == b"newer model"
    assert entries(own_bundle.parent) == ["own"]
    assert "parity.json" not in entries(own_bundle)


def test_a_failure_while_overwriting_keeps_the_old_bundle(parts, own_bundle, monkeypatch):
    monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    real = os.rename

    def fail_to_move_in(source, target):
        model = Path(source) / "onnx" / "policy.onnx"
        if Path(target) == own_bundle and model.read_bytes() == b"newer model":
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", fail_to_move_in)
    with (
        pytest.raises(BundleError, match="Input/output error"),
        BundleWriter(own_bundle, overwrite=True) as writer,
    ):
        put_model(writer, b"newer model")
        writer.commit(*parts)
    monkeypatch.undo()
    assert entries(own_bundle.parent) == ["own"]
    assert read_bundle(own_bundle).manifest.name == "leaky"


def test_overwriting_never_removes_what_is_not_a_bundle(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    for name in ("home", "file", "link"):
        with pytest.raises(BundleError, match=f"{name}: exists and is not a bundle"):
            BundleWriter(tmp_path / name, overwrite=True).__enter__()
    assert entries(tmp_path) == ["file", "home", "link"]


def test_an_empty_directory_may_be_overwritten(parts, tmp_path):
    (tmp_path / "policy").mkdir()
    with BundleWriter(tmp_path / "policy", overwrite=True) as writer:
        put_model(writer)
        writer.commit(*parts)
    assert entries(tmp_path) == ["policy"]


def test_a_target_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="policy: cannot be written"):
        BundleWriter(tmp_path / "file" / "policy").__enter__()
    with pytest.raises(BundleError, match="cannot be written.*File name too long"):
        BundleWriter(tmp_path / ("n" * 300)).__enter__()

    def deny(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", deny)
    with pytest.raises(BundleError, match="cannot be written.*Permission denied"):
        BundleWriter(tmp_path / "a" / "policy").__enter__()
    assert entries(tmp_path) == ["file"]


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "carry"
    files.write_atomically(target, b"old")

    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.write_atomically(target, b"new")
    assert target.read_bytes() == b"old" and entries(tmp_path) == ["carry"]
