import hashlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from serving import BundleError, read_bundle
from serving.manifest_json import MAX_MANIFEST_BYTES
from serving.tensors import encode_tensors


def edit_manifest(bundle: Path, change) -> None:
    file = bundle / "manifest.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def replace_tensors(bundle: Path, name: str, tensors: dict[str, np.ndarray]) -> None:
    """Puts other tensors in, with a manifest that vouches for them."""
    data = encode_tensors(tensors)
    (bundle / name).write_bytes(data)

    def change(values):
        for file in values["files"]:
            if file["path"] == name:
                file.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())

    edit_manifest(bundle, change)


def test_a_bundle_read_back_is_what_was_written(bundle_path, leaky):
    bundle = read_bundle(bundle_path)
    golden = leaky.golden()
    assert bundle.manifest.name == "leaky"
    assert bundle.manifest.metadata.extra == {"robot": "arm 7"}
    assert {k: v.tolist() for k, v in bundle.initial_carry.items()} == {
        "carry.count": 5,
        "carry.hidden": np.array([0.1, -0.2, 0.3], np.float32).tolist(),
        "carry.total": [1.5],
    }
    assert set(bundle.golden) == set(golden)
    assert all(np.array_equal(bundle.golden[name], golden[name]) for name in golden)
    assert bundle.artefact_path("onnx") == bundle_path / "onnx" / "policy.onnx"
    assert bundle.artefact_bytes("onnx") == (bundle_path / "onnx" / "policy.onnx").read_bytes()


def test_files_at_the_top_that_nothing_loads_are_left_alone(own_bundle):
    (own_bundle / "parity.json").write_text("{}")
    (own_bundle / "README.md").write_text("a policy")
    assert read_bundle(own_bundle).manifest.name == "leaky"


def test_a_bundle_is_read_through_a_link_to_it(bundle_path, tmp_path):
    (tmp_path / "latest").symlink_to(bundle_path)
    assert read_bundle(tmp_path / "latest").manifest.name == "leaky"


def test_a_link_that_stays_inside_is_followed(own_bundle):
    real = own_bundle / "weights.onnx"
    shutil.move(own_bundle / "onnx" / "policy.onnx", real)
    (own_bundle / "onnx" / "policy.onnx").symlink_to(real)
    assert read_bundle(own_bundle).artefact_bytes("onnx") == real.read_bytes()


@pytest.mark.parametrize(
    "name", ["manifest.json", "initial_carry.safetensors", "golden.safetensors", "onnx/policy.onnx"]
)
def test_a_missing_file_is_named(own_bundle, name):
    (own_bundle / name).unlink()
    with pytest.raises(BundleError, match=rf"{name}: is missing") as raised:
        read_bundle(own_bundle)
    assert raised.value.file == own_bundle / name


@pytest.mark.parametrize(
    "name", ["initial_carry.safetensors", "golden.safetensors", "onnx/policy.onnx"]
)
def test_a_truncated_file_is_named(own_bundle, name):
    data = (own_bundle / name).read_bytes()
    (own_bundle / name).write_bytes(data[:-1])
    with pytest.raises(BundleError, match=rf"{name}: truncated: {len(data) - 1} bytes"):
        read_bundle(own_bundle)


@pytest.mark.parametrize(
    "name", ["initial_carry.safetensors", "golden.safetensors", "onnx/policy.onnx"]
)
def test_a_lengthened_file_is_named(own_bundle, name):
    with (own_bundle / name).open("ab") as stream:
        stream.write(b"\x00")
    with pytest.raises(BundleError, match=rf"{name}: altered: .* bytes, the manifest says"):
        read_bundle(own_bundle)


@pytest.mark.parametrize(
    "name", ["initial_carry.safetensors", "golden.safetensors", "onnx/policy.onnx"]
)
def test_a_single_changed_bit_is_found(own_bundle, name):
    data = bytearray((own_bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (own_bundle / name).write_bytes(data)
    with pytest.raises(BundleError, match=rf"{name}: altered: SHA-256"):
        read_bundle(own_bundle)


def test_a_file_altered_after_reading_is_not_handed_to_a_runtime(own_bundle):
    bundle = read_bundle(own_bundle)
    model = own_bundle / "onnx" / "policy.onnx"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    with pytest.raises(BundleError, match="policy.onnx: altered"):
        bundle.artefact_bytes("onnx")


def test_a_truncated_manifest_is_refused(own_bundle):
    file = own_bundle / "manifest.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BundleError, match="manifest.json: not valid JSON"):
        read_bundle(own_bundle)


def test_a_huge_manifest_is_refused_by_its_size_alone(own_bundle):
    with (own_bundle / "manifest.json").open("wb") as stream:
        stream.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(BundleError, match="manifest.json: 8388609 bytes, larger than the limit"):
        read_bundle(own_bundle)


def test_a_newer_version_is_reported_before_damage_elsewhere(own_bundle):
    edit_manifest(own_bundle, lambda m: m.update(format_version=9, novelty=1))
    (own_bundle / "onnx" / "policy.onnx").unlink()
    with pytest.raises(BundleError, match="format version 9 is newer than 1"):
        read_bundle(own_bundle)


@pytest.mark.parametrize("path", ["onnx/../../outside.onnx", "/etc/hostname", "onnx//policy.onnx"])
def test_a_listed_path_that_leads_out_is_refused_unopened(own_bundle, path):
    (own_bundle.parent / "outside.onnx").write_bytes(b"x")
    entry = {"path": path, "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    edit_manifest(own_bundle, lambda m: m["artefacts"]["onnx"]["files"].append(entry))
    with pytest.raises(BundleError, match="manifest.json: (path|artefact onnx)"):
        read_bundle(own_bundle)


@pytest.mark.parametrize("name", ["manifest.json", "golden.safetensors", "onnx/policy.onnx"])
def test_a_link_out_of_the_bundle_is_refused(own_bundle, name):
    outside = own_bundle.parent / "outside"
    shutil.move(own_bundle / name, outside)
    (own_bundle / name).symlink_to(outside)
    with pytest.raises(BundleError, match=rf"{name}: is a link to something outside"):
        read_bundle(own_bundle)


def test_a_directory_linked_from_outside_is_refused(own_bundle):
    shutil.move(own_bundle / "onnx", own_bundle.parent / "elsewhere")
    (own_bundle / "onnx").symlink_to(own_bundle.parent / "elsewhere")
    with pytest.raises(BundleError, match="policy.onnx: is a link to something outside"):
        read_bundle(own_bundle)


def test_a_link_in_a_circle_is_refused(own_bundle):
    file = own_bundle / "golden.safetensors"
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(BundleError, match="golden.safetensors: unreadable"):
        read_bundle(own_bundle)


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(own_bundle):
    file = own_bundle / "golden.safetensors"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(BundleError, match="golden.safetensors: is not a regular file"):
        read_bundle(own_bundle)


def test_a_directory_in_place_of_a_file_is_refused(own_bundle):
    (own_bundle / "onnx" / "policy.onnx").unlink()
    (own_bundle / "onnx" / "policy.onnx").mkdir()
    with pytest.raises(BundleError, match="policy.onnx: is not a regular file"):
        read_bundle(own_bundle)


@pytest.mark.parametrize("name", ["onnx/extra.onnx", "onnx/deep/weights.bin"])
def test_an_unlisted_file_beside_an_artefact_is_refused(own_bundle, name):
    (own_bundle / name).parent.mkdir(exist_ok=True)
    (own_bundle / name).write_bytes(b"x")
    with pytest.raises(BundleError, match=rf"{name}: is not listed in the manifest"):
        read_bundle(own_bundle)


def test_an_unlisted_link_beside_an_artefact_is_refused(own_bundle, tmp_path):
    (own_bundle / "onnx" / "more").symlink_to(tmp_path)
    with pytest.raises(BundleError, match=r"onnx/more: is not listed"):
        read_bundle(own_bundle)


@pytest.mark.parametrize("file", ["initial_carry.safetensors", "golden.safetensors"])
def test_tensors_that_are_not_safetensors_are_refused_even_with_the_right_hash(own_bundle, file):
    data = b"\x00" * 50
    (own_bundle / file).write_bytes(data)

    def change(values):
        for entry in values["files"]:
            if entry["path"] == file:
                entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())

    edit_manifest(own_bundle, change)
    with pytest.raises(BundleError, match=rf"{file}: not a valid safetensors file"):
        read_bundle(own_bundle)


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: without(c, "carry.count"), "'carry.count' is missing"),
        (lambda c: {**c, "carry.x": c["carry.count"]}, "unexpected tensor 'carry.x'"),
        (
            lambda c: {**c, "carry.count": np.array(5, np.float32)},
            "'carry.count' has dtype float32",
        ),
        (
            lambda c: {**c, "carry.hidden": np.zeros(4, np.float32)},
            r"hidden' has shape \(4,",
        ),
        (lambda c: {**c, "carry.hidden": np.zeros((1, 3), np.float32)}, r"has shape \(1, 3\)"),
    ],
)
def test_an_initial_carry_that_does_not_fit_the_ports_is_refused(own_bundle, change, message):
    carry = dict(read_bundle(own_bundle).initial_carry)
    replace_tensors(own_bundle, "initial_carry.safetensors", change(carry))
    with pytest.raises(BundleError, match=f"initial_carry.safetensors: .*{message}"):
        read_bundle(own_bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: without(g, "obs.goal"), "'obs.goal' is missing"),
        (lambda g: without(g, "next_carry.total"), "'next_carry.total' is missing"),
        (lambda g: without(g, "reset"), "tensor 'reset' is missing"),
        (lambda g: {**g, "speed": g["obs.goal"]}, "unexpected tensor 'speed'"),
        (lambda g: {**g, "obs.goal": g["obs.goal"].astype("f8")}, "'obs.goal' has dtype float64"),
        (lambda g: {**g, "action.joints": g["action.joints"][:-1]}, "'action.joints' has shape"),
        (lambda g: {**g, "reset": g["reset"].astype("i4")}, r"'reset' is int32\[40, 3\]"),
        (lambda g: {**g, "reset": g["reset"][0]}, r"'reset' is bool\[3\]"),
        (lambda g: {k: v[:0] for k, v in g.items()}, r"'reset' is bool\[0, 3\]"),
    ],
)
def test_a_golden_trajectory_that_does_not_fit_the_ports_is_refused(own_bundle, change, message):
    golden = dict(read_bundle(own_bundle).golden)
    replace_tensors(own_bundle, "golden.safetensors", change(golden))
    with pytest.raises(BundleError, match=f"golden.safetensors: .*{message}"):
        read_bundle(own_bundle)


def test_a_golden_trajectory_of_another_batch_than_the_only_one_is_refused(own_bundle):
    edit_manifest(own_bundle, lambda m: m.update(batch_size=4))
    with pytest.raises(BundleError, match="has 3 rows, but the bundle's batch size is 4"):
        read_bundle(own_bundle)


def test_what_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match="does not exist"):
        read_bundle(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="is not a directory"):
        read_bundle(tmp_path / "file")
    with pytest.raises(BundleError, match="manifest.json: is missing"):
        read_bundle(tmp_path)


def test_an_artefact_that_is_not_there_is_named(bundle_path):
    bundle = read_bundle(bundle_path)
    with pytest.raises(BundleError, match=r"has no artefact 'stablehlo'; it has \['onnx'\]"):
        bundle.artefact_path("stablehlo")


def test_random_damage_anywhere_is_refused_or_harmless(own_bundle):
    """Whatever is done to the manifest, reading ends in a bundle or in a BundleError."""
    file = own_bundle / "manifest.json"
    good = file.read_bytes()
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            position = int(rng.integers(len(data)))
            data[position] = int(rng.integers(256))
        file.write_bytes(data)
        try:
            read_bundle(own_bundle)
        except BundleError as error:
            refused += 1
            assert str(own_bundle) in str(error)
    assert refused > 100


def test_errors_survive_pickling_to_another_process():
    import pickle

    again = pickle.loads(pickle.dumps(BundleError("dir/file", "is bad")))
    assert str(again) == "dir/file: is bad" and again.reason == "is bad"


def test_the_manifest_in_memory_equals_the_file(bundle_path):
    bundle = read_bundle(bundle_path)
    raw = json.loads((bundle_path / "manifest.json").read_text())
    assert msgspec.to_builtins(bundle.manifest) == raw
