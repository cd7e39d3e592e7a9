"""Writing training states to disk and going on from them.

A checkpoint is a directory of safetensors files and JSON. It holds no pickled object and no code.
Its name appears once everything in it is on the disk, so that a run killed at any moment goes on
from ``latest_checkpoint``.
"""

import hashlib
import importlib.metadata
import os
import re
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nnx_ppo.algorithms.checkpoint_format.atomic_directory import (
    atomic_directory,
    remove_directory,
)
from nnx_ppo.algorithms.checkpoint_format.json_values import NotRecordable, to_json_value
from nnx_ppo.algorithms.checkpoint_format.metadata import (
    FILE_NAME,
    FileRecord,
    Metadata,
    encode_metadata,
    is_complete,
)
from nnx_ppo.algorithms.checkpoint_format.state_trees import record_training_state
from nnx_ppo.algorithms.checkpoint_format.tensor_file import encode_tensors
from nnx_ppo.algorithms.checkpoint_reading import (
    CheckpointRecord,
    load_checkpoint,
    load_network,
    read_checkpoint_record,
)
from nnx_ppo.algorithms.errors import CheckpointError
from nnx_ppo.algorithms.factory_record import FactoryRecord

__all__ = [
    "CheckpointCallback",
    "CheckpointError",
    "CheckpointRecord",
    "latest_checkpoint",
    "load_checkpoint",
    "load_network",
    "make_checkpoint_fn",
    "read_checkpoint_record",
]

# Tools that look for a checkpoint by this name of old find it; the contents are plain text.
NOTE_NAME = "metadata.pkl"
NOTE = "Nothing here is pickled: what this checkpoint holds is described in metadata.json.\n"

STEP_DIRECTORY = re.compile(r"step_(\d{10,})")
PACKAGES = ("jax", "flax", "optax", "numpy", "safetensors", "nnx-ppo-deploy")


@runtime_checkable
class CheckpointCallback(Protocol):
    """What ``train_ppo`` takes as ``checkpoint_fn``."""

    def __call__(self, training_state: Any, step: int) -> None:
        """Saves a training state after ``step`` environment steps."""
        ...


def make_checkpoint_fn(
    directory: str | os.PathLike[str],
    config: Any = None,
    *,
    network_factory: FactoryRecord | None = None,
    environment_factory: FactoryRecord | None = None,
    keep_last: int | None = None,
) -> CheckpointCallback:
    """Returns a ``checkpoint_fn`` that writes ``directory/step_0000001000/`` and so on.

    Args:
        directory: Where checkpoints go; created with the first one. Taken as absolute from now
            on, should the working directory change.
        config: The run's settings, returned again by ``load_checkpoint``: a dataclass, a dict, or
            anything made of numbers, strings, lists, enumerations and the like.
        network_factory: How to build the network, so that others can load it without this script.
        environment_factory: How to build the environment.
        keep_last: How many checkpoints to keep, the older ones being removed; None keeps all.

    Returns:
        A function ``(training_state, step)``. It returns when everything is on the disk. Saving
        over an existing step replaces it.

    Raises:
        CheckpointError: ``config`` cannot be written.
        ValueError: ``keep_last`` is less than 1.
    """
    root = Path(os.path.abspath(directory))
    if keep_last is not None and keep_last < 1:
        raise ValueError(f"keep_last={keep_last}: keep at least one checkpoint, or None for all")
    try:
        config_record = to_json_value(config, "config")
    except NotRecordable as error:
        raise CheckpointError(f"{root}: {error}") from error

    def save(training_state: Any, step: int) -> None:
        target = root / f"step_{step:010d}"
        contents = record_training_state(training_state, target)
        files = {name: encode_tensors(tensors) for name, tensors in contents.tensors.items()}
        files[NOTE_NAME] = NOTE.encode()
        metadata = Metadata(
            kind=contents.kind,
            step=int(step),
            n_envs=contents.n_envs,
            trees=contents.trees,
            observation=contents.observation,
            config=config_record,
            network_factory=network_factory.to_json() if network_factory else None,
            environment_factory=environment_factory.to_json() if environment_factory else None,
            versions=_versions(),
            files={name: _file_record(data) for name, data in files.items()},
        )
        files[FILE_NAME] = encode_metadata(metadata)
        try:
            with atomic_directory(target) as temporary:
                for name, data in files.items():
                    path = temporary / name
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(data)
        except (OSError, ValueError) as error:  # ValueError: a name that no directory can have
            raise CheckpointError(f"{target} cannot be written: {error}") from error
        if keep_last is not None:
            _remove_all_but(root, keep_last, target)

    return save


def latest_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """Returns the complete checkpoint with the most steps in a directory.

    Directories with missing, shortened or unreadable files are passed over; those of a run that
    was killed while writing are not under a checkpoint's name.

    Returns:
        The step directory, or None if there is no complete checkpoint.
    """
    for _, path in reversed(_step_directories(Path(directory))):
        if is_complete(path):
            return path
    return None


def _step_directories(root: Path) -> list[tuple[int, Path]]:
    if not root.is_dir():
        return []
    found = []
    for path in root.iterdir():
        match = STEP_DIRECTORY.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match[1]), path))
    return sorted(found)


def _remove_all_but(root: Path, keep_last: int, newest: Path) -> None:
    """Removes the checkpoints written first, which after going back need not have fewest steps."""
    others = [path for _, path in _step_directories(root) if path != newest]
    others.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in others[: max(0, len(others) - (keep_last - 1))]:
        remove_directory(path)


def _file_record(data: bytes) -> FileRecord:
    return FileRecord(hashlib.sha256(data).hexdigest(), len(data))


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed as a package"
    return versions
