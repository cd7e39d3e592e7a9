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


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from nnx_ppo.algorithms.checkpoint_format.atomic_directory import atomic_directory\n"
        "with atomic_directory(Path(sys.argv[1]) / 'target') as temporary:\n"
        "    (temporary / 'file').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert result.returncode == -signal.SIGKILL
    (left,) = _names(tmp_path)
    assert left.startswith(".target.writing-")
    remove_leftovers(tmp_path)
    assert _names(tmp_path) == []


def test_what_a_running_process_writes_is_left_alone(tmp_path):
    with atomic_directory(tmp_path / "target"):
        before = _names(tmp_path)
        assert str(os.getpid()) in before[0]
        remove_leftovers(tmp_path)
        assert _names(tmp_path) == before


def test_removal_leaves_no_half(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("text")
    remove_directory(target)
    assert _names(tmp_path) == []
