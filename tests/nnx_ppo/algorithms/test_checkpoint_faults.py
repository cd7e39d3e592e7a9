"""A disk that refuses a checkpoint: one clear error, and the checkpoint before it stays whole."""

import errno
import io
import os

import pytest
from training_cases import PointEnv, make_point_networks

from nnx_ppo.algorithms.checkpointing import (
    CheckpointError,
    latest_checkpoint,
    make_checkpoint_fn,
    read_checkpoint_record,
)
from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.algorithms.ppo import new_training_state
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def state():
    return new_training_state(EpisodeWrapper(PointEnv(), 5), make_point_networks(0), 4, 0)


def _contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("step", [10, 20])
def test_a_disk_that_fills_up_in_mid_write_keeps_what_is_there(
    tmp_path, monkeypatch, state, step, after
):
    save = make_checkpoint_fn(tmp_path, TrainConfig(seed=4))
    save(state, 10)
    before = _contents(tmp_path)
    real, written = io.open, []

    def fill_up(file, mode="r", *args, **kwargs):
        if "w" in mode:
            written.append(file)
            if len(written) > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        return real(file, mode, *args, **kwargs)

    monkeypatch.setattr(io, "open", fill_up)
    with pytest.raises(
        CheckpointError, match=f"step_00000000{step} cannot be written: .*No space left"
    ):
        save(state, step)
    monkeypatch.undo()
    assert _contents(tmp_path) == before
    latest = latest_checkpoint(tmp_path)
    assert latest == tmp_path / "step_0000000010"
    assert read_checkpoint_record(latest).config == TrainConfig(seed=4)
    save(state, 20)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_0000000020"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path, monkeypatch, state, code):
    def refuse(path, *args, **kwargs):
        raise OSError(code, os.strerror(code), str(path))

    save = make_checkpoint_fn(tmp_path / "run")
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(CheckpointError, match=f"cannot be written: .*{os.strerror(code)}"):
        save(state, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_directory_can_have_is_one_clear_error(tmp_path, state):
    save = make_checkpoint_fn(f"{tmp_path}/a\0b")
    with pytest.raises(CheckpointError, match="cannot be written: .*null"):
        save(state, 10)
