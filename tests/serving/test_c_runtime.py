"""The C runtime: what it compiles, where it keeps it, and whom it trusts."""

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import leaky_c
import msgspec
import numpy as np
import pytest

from serving import BundleError, BundleWriter, RuntimeUnavailableError, load_policy
from serving.runtimes import c_build
from serving.runtimes.c_build import CacheError, build, find_compiler

SOURCE = {"a.c": b"int answer(void) { return 42; }\n"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nnx-ppo" / "c"


def bundle_of(leaky, path, source=leaky_c.SOURCE):
    manifest = msgspec.structs.replace(leaky.manifest(), artefacts={"c": leaky_c.ARTEFACT})
    with BundleWriter(path) as writer:
        leaky_c.write(writer.path, source)
        carry = {name: value[0] for name, value in leaky.initial_carry(1).items()}
        return writer.commit(manifest, carry, leaky.golden())


def test_what_was_compiled_is_used_again_until_anything_differs(cache, monkeypatch):
    compiler = find_compiler(None)
    first = build(compiler, SOURCE, "a.c")
    assert first.parent == cache and stat.S_IMODE(cache.stat().st_mode) == 0o700
    made = first.stat().st_mtime_ns
    assert build(compiler, SOURCE, "a.c") == first and first.stat().st_mtime_ns == made
    assert build(compiler, {"a.c": SOURCE["a.c"] + b"\n"}, "a.c") != first
    monkeypatch.setattr(c_build, "FLAGS", tuple(f for f in c_build.FLAGS if f != "-O3"))
    assert build(compiler, SOURCE, "a.c") != first
    # Not all options define a macro.
    assert build([*compiler, "-fno-signed-zeros"], SOURCE, "a.c") != build(compiler, SOURCE, "a.c")
    assert sorted(path.suffix for path in cache.iterdir()) == [".so"] * 4


def test_processes_that_compile_the_same_at_once_share_one_whole_file(cache):
    code = (
        "from serving.runtimes.c_build import build, find_compiler; "
        f"print(build(find_compiler(None), {SOURCE!r}, 'a.c'))"
    )
    command = [sys.executable, "-c", code]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = {worker.communicate(timeout=120)[0].strip() for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert found == {str(path) for path in cache.iterdir()} and len(found) == 1


@pytest.mark.parametrize("level", ["nnx-ppo", "nnx-ppo/c"])
def test_a_directory_that_others_may_write_is_refused(cache, level):
    cache.mkdir(parents=True)
    directory = cache.parents[1] / level
    directory.chmod(0o777)
    with pytest.raises(CacheError, match=r"can be written by others \(mode 777\).*XDG_CACHE_HOME"):
        build(find_compiler(None), SOURCE, "a.c")


def test_a_file_that_others_may_write_or_that_is_a_link_is_refused(cache, tmp_path):
    target = build(find_compiler(None), SOURCE, "a.c")
    target.chmod(0o777)
    with pytest.raises(CacheError, match="can be written by others"):
        build(find_compiler(None), SOURCE, "a.c")
    moved = tmp_path / "elsewhere.so"
    shutil.move(target, moved)
    moved.chmod(0o700)
    target.symlink_to(moved)
    with pytest.raises(CacheError, match="is no regular file"):
        build(find_compiler(None), SOURCE, "a.c")


def test_a_directory_of_someone_else_is_refused(cache, monkeypatch):
    build(find_compiler(None), SOURCE, "a.c")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(CacheError, match=f"belongs to the user {me}, not to {me + 1}"):
        build(find_compiler(None), SOURCE, "a.c")


def test_a_cache_that_cannot_be_made_is_an_error_about_it(cache, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(CacheError, match="cannot be made: .*XDG_CACHE_HOME"):
        build(find_compiler(None), SOURCE, "a.c")


def test_without_a_home_the_variable_to_set_is_named(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CacheError, match="no home directory .* XDG_CACHE_HOME") as caught:
        build(find_compiler(None), SOURCE, "a.c")
    # So that what runs all runtimes leaves this one out.
    assert isinstance(caught.value, RuntimeUnavailableError)


def test_a_command_that_cannot_be_split_is_said_plainly(monkeypatch):
    monkeypatch.setenv("CC", 'gcc "-O2')
    with pytest.raises(RuntimeUnavailableError, match="is no command: No closing quotation"):
        find_compiler(None)


def test_no_compiler_is_said_plainly(leaky, tmp_path, monkeypatch):
    bundle = bundle_of(leaky, tmp_path / "b")
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(RuntimeUnavailableError, match=r"'/nowhere/cc' is not found.*install gcc"):
        load_policy(bundle, runtime="c")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeUnavailableError, match="cc nor gcc nor clang is not found"):
        load_policy(bundle, runtime="c")


def test_the_compiler_is_the_callers_choice_and_its_complaint_is_passed_on(leaky, tmp_path):
    (tmp_path / "mycc").write_text('#!/bin/sh\necho used >> "$0.log"\nexec cc "$@"\n')
    (tmp_path / "mycc").chmod(0o755)
    bundle = bundle_of(leaky, tmp_path / "b")
    session = load_policy(bundle, runtime="c", compiler=f"{tmp_path / 'mycc'} -g0").session()
    assert session.manifest.name == "leaky" and (tmp_path / "mycc.log").exists()
    broken = bundle_of(leaky, tmp_path / "broken", leaky_c.SOURCE + "\nint oops = ;\n")
    with pytest.raises(RuntimeUnavailableError, match="(?s)failed with status 1: .*oops"):
        load_policy(broken, runtime="c")


def test_c_that_does_not_match_the_manifest_is_refused(leaky, tmp_path):
    wrong = leaky_c.SOURCE.replace('"obs.goal", "observation", "float32", ""', '"x", "y", "z", ""')
    with pytest.raises(BundleError, match=r"policy.c: its inputs do not match.*obs.goal"):
        load_policy(bundle_of(leaky, tmp_path / "b", wrong), runtime="c")


def test_a_damaged_file_in_the_cache_is_made_anew(leaky, tmp_path, cache):
    bundle = bundle_of(leaky, tmp_path / "b")
    code = f"from serving import load_policy; load_policy({str(tmp_path / 'b')!r}, runtime='c')"
    subprocess.run([sys.executable, "-c", code], check=True)
    (library,) = cache.glob("*.so")
    library.write_bytes(b"cut off")
    assert load_policy(bundle, runtime="c").session().manifest.name == "leaky"
    assert list(cache.glob("*.so")) == [library] and library.stat().st_size > 1000


def test_what_cannot_be_loaded_after_that_either_is_named(leaky, tmp_path, monkeypatch):
    bundle = bundle_of(leaky, tmp_path / "b")

    def refuse(file):
        raise OSError(f"{file}: failed to map segment from shared object")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(BundleError, match=r"\.so, just made of it, cannot be .* XDG_CACHE_HOME"):
        load_policy(bundle, runtime="c")


def test_subnormal_numbers_are_flushed_for_the_call_alone(leaky, tmp_path):
    session = load_policy(bundle_of(leaky, tmp_path / "b"), runtime="c").session()
    carry = session.carry
    carry["carry.hidden"][...] = 1e-38
    session.carry = carry
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 1), row=0)
    observation["arm"]["contact"][...] = False
    observation["arm"]["position"][...] = 0.0
    session.step(observation)
    # 0.9e-38 is below the smallest normal number of float32.
    assert session.carry["carry.hidden"].tolist() == [0.0, 0.0, 0.0]
    assert np.float32(1e-38) * np.float32(0.5) > 0


def test_serving_with_c_imports_nothing_more(leaky, tmp_path):
    bundle_of(leaky, tmp_path / "b")
    code = (
        "import sys; from serving import load_policy; "
        f"load_policy({str(tmp_path / 'b')!r}, runtime='c').session(); "
        "print([m for m in ('jax', 'onnx', 'onnxruntime', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
