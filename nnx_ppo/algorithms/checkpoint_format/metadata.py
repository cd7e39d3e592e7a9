"""``metadata.json``: everything about a checkpoint that is not a tensor."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from nnx_ppo.algorithms.checkpoint_format.leaves import LeafRecord
from nnx_ppo.algorithms.checkpoint_format.tree_record import Node
from nnx_ppo.algorithms.errors import CheckpointError

FILE_NAME = "metadata.json"
FORMAT = "nnx-ppo checkpoint"
FORMAT_VERSION = 1


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the checkpoint."""

    sha256: str
    size: int


class TreeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pytree; its leaves are in the order in which JAX flattens it."""

    file: str | None
    """The file that holds its tensors; None where only shapes and types are recorded."""
    structure: Node | None
    """None for the states of networks and optimizers, which are restored into their modules."""
    leaves: list[LeafRecord]


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``metadata.json`` holds, under ``record``."""

    kind: str
    """Which training state this is."""
    step: int
    n_envs: int
    trees: dict[str, TreeRecord]
    observation: TreeRecord | None
    """One observation, without batch axis."""
    config: Any
    network_factory: Any
    environment_factory: Any
    versions: dict[str, str]
    files: dict[str, FileRecord]


def encode_metadata(metadata: Metadata) -> bytes:
    """Returns the contents of ``metadata.json``."""
    record = msgspec.to_builtins(metadata)
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "sha256": _digest(record),
        "record": record,
    }
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def read_metadata(directory: Path) -> Metadata:
    """Reads and checks ``metadata.json`` of a checkpoint.

    Raises:
        CheckpointError: it is missing, damaged, altered, or of another format.
    """
    file = directory / FILE_NAME
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{directory} is not a checkpoint: it has no {FILE_NAME}; pass a step_... directory, "
            f"such as latest_checkpoint(directory) returns"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{file} is not the metadata of an nnx-ppo checkpoint")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{file} has format version {version!r} but this version of nnx_ppo reads "
            f"{FORMAT_VERSION}; use the nnx_ppo that wrote it, or a newer one"
        )
    record = document.get("record")
    if document.get("sha256") != _digest(record):
        raise CheckpointError(f"{file} is damaged or was altered: its checksum does not match")
    try:
        return msgspec.convert(record, Metadata)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{file} is not as this format version has it: {error}") from error


def read_file(directory: Path, name: str, metadata: Metadata) -> bytes:
    """Reads a file of a checkpoint.

    Raises:
        CheckpointError: it is missing or not the one that was written.
    """
    file, record = directory / name, metadata.files.get(name)
    if record is None:
        raise CheckpointError(f"{file} is not listed in {FILE_NAME}")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) != record.size:
        raise CheckpointError(
            f"{file} is damaged: it has {len(data)} bytes, {record.size} were written"
        )
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise CheckpointError(f"{file} is damaged or was altered: its checksum does not match")
    return data


def is_complete(directory: Path) -> bool:
    """Whether a checkpoint's files are all there in their full size."""
    try:
        metadata = read_metadata(directory)
        return all(
            (directory / name).stat().st_size == record.size
            for name, record in metadata.files.items()
        )
    except (CheckpointError, OSError):
        return False


def _digest(record: Any) -> str:
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
