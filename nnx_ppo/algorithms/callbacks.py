"""Ready-made observers of training."""

from collections.abc import Callable

import numpy as np

from nnx_ppo.algorithms.config import VideoData


def wandb_video_fn(key: str = "eval_video", fps: int = 30) -> Callable[[VideoData], None]:
    """Returns a ``video_fn`` that logs each video to the running Weights & Biases run.

    Args:
        key: Name under which the video is logged.
        fps: Frames per second.
    """

    def log_video(data: VideoData) -> None:
        # Imported when the first video is there: training does not depend on wandb.
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("wandb_video_fn needs wandb: pip install wandb") from error
        frames = np.transpose(data.frames, (0, 3, 1, 2))  # wandb wants channels before the image
        video = wandb.Video(frames, fps=fps, format="mp4")
        wandb.log({key: video}, step=data.step)

    return log_video
