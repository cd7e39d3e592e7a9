import errno
import os
import signal
import subprocess
import sys

import pytest

from nnx_ppo.algorithms.checkpoint_format import atomic_directory as module
from nnx_ppo.algorithms.checkpoint_format.atomic_directory import (
    atomic_directory,
    remove_directory,
    remove_leftovers,
)


def _names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_directory_appears_when_the_block_ends(tmp_path):
    target = tmp_path / "deep" / "target"
    with atomic_directory(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "file").write_text("text")
        assert not target.exists()
    assert (target / "sub" / "file").read_text() == "text"
    assert _names(target.parent) == ["target"]


def test_an_exception_leaves_nothing_behind(tmp_path):
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "target") as temporary:
        (temporary / "file").write_text("text")
        raise RuntimeError
    assert _names(tmp_path) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_existing_directory_is_replaced(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(module, "_exchange", lambda first, second: False)
    target = tmp_path / "target"
    for text in ("first", "second"):
        with atomic_directory(target) as temporary:
            (temporary / text).write_text(text)
    assert _names(target) == ["second"]
    assert _names(tmp_path) == ["target"]


def test_an_exception_keeps_the_existing_directory(tmp_path):
    target = tmp_path / "target"
    with atomic_directory(target) as temporary:
        (temporary / "file").write_text("first")
    with pytest.raises(RuntimeError), atomic_directory(target) as temporary:
        (temporary / "file").write_text("second")
        raise RuntimeError
    assert (target / "file").read_text() == "first"
    assert _names(tmp_path) == ["target"]


WRITER = """
import sys
from pathlib import Path
from nnx_ppo.algorithms.checkpoint_format.atomic_directory import atomic_directory
with atomic_directory(Path(sys.argv[1]) / "target") as temporary:
    (temporary / "file").write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def _start_writer(directory):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdout.readline() == b"writing\n"
    return writer


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    with _start_writer(tmp_path) as writer:
        (left,) = _names(tmp_path)
        assert left.startswith(".target.writing-")
        writer.kill()
    assert writer.returncode == -signal.SIGKILL
    assert _names(tmp_path) == [left]
    with atomic_directory(tmp_path / "other"):
        assert left not in _names(tmp_path)
    assert _names(tmp_path) == ["other"]


def test_what_a_living_process_writes_is_left_alone(tmp_path):
    with _start_writer(tmp_path) as writer:
        remove_leftovers(tmp_path)
        assert len(_names(tmp_path)) == 1
        writer.stdin.close()
    assert writer.returncode == 0
    assert (tmp_path / "target" / "file").read_text() == "half"
    assert _names(tmp_path) == ["target"]


def test_what_this_process_writes_is_left_alone(tmp_path):
    with atomic_directory(tmp_path / "target"):
        before = _names(tmp_path)
        remove_leftovers(tmp_path)
        assert _names(tmp_path) == before


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EBADF])
def test_without_locks_nothing_is_removed(tmp_path, monkeypatch, code):
    def refuse(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    (tmp_path / ".old.writing-0123").mkdir()
    with atomic_directory(tmp_path / "target") as temporary:
        (temporary / "file").write_text("text")
    assert _names(tmp_path) == [".old.writing-0123", "target"]


def test_a_directory_taken_for_a_leftover_before_its_lock_is_made_again(tmp_path, monkeypatch):
    real, taken = module._lock, []

    def lose_the_first(directory):
        if not taken:
            taken.append(directory)
            directory.rmdir()
        return real(directory)

    monkeypatch.setattr(module, "_lock", lose_the_first)
    with atomic_directory(tmp_path / "target") as temporary:
        assert temporary != taken[0]
        (temporary / "file").write_text("text")
    assert _names(tmp_path) == ["target"]


def test_removal_leaves_no_half(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("text")
    remove_directory(target)
    assert _names(tmp_path) == []
