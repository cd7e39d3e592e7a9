import sys
import types

import numpy as np
import pytest

from nnx_ppo.algorithms.callbacks import wandb_video_fn
from nnx_ppo.algorithms.config import VideoData

DATA = VideoData(np.zeros((5, 2, 3, 3), np.uint8), 1_000, 1.0, 5)


def test_videos_are_logged_with_channels_first(monkeypatch):
    logged = []
    wandb = types.ModuleType("wandb")
    setattr(wandb, "Video", lambda frames, **options: (frames.shape, options))  # noqa: B010
    setattr(wandb, "log", lambda values, step: logged.append((values, step)))  # noqa: B010
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    wandb_video_fn("film", fps=7)(DATA)
    assert logged == [({"film": ((5, 3, 2, 3), {"fps": 7, "format": "mp4"})}, 1_000)]


def test_a_missing_wandb_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install wandb"):
        wandb_video_fn()(DATA)
