"""Reading a bundle: a directory in which every file is checked before it is used.

`read_bundle` reads the manifest with its limits first, then every file it lists: name, kind, size
and SHA-256; then the tensors of initial carry and golden trajectory against the ports. A file in an
artefact's directory that the manifest does not list is refused too, since a runtime would read it.
Files at the top that it does not list (`parity.json`, `latency.json`, `report.html`, `README.md`)
are left alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from serving.errors import BundleError
from serving.manifest import (
    GOLDEN_FILE,
    INITIAL_CARRY_FILE,
    MANIFEST_FILE,
    Artefact,
    File,
    Manifest,
)
from serving.manifest_json import MAX_MANIFEST_BYTES, parse_manifest
from serving.structure import STRUCTURE_FILE, Structure, parse_structure
from serving.tensors import check_tensors, decode_tensors, port_shapes

RESET = "reset"
"""Name of the golden tensor that says which rows are reset before which step."""

_CHUNK = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A bundle whose files have all been checked."""

    path: Path
    """The directory."""
    manifest: Manifest
    """What the bundle says about itself."""
    initial_carry: dict[str, np.ndarray]
    """Carry of one fresh environment: port name to array without batch axis."""
    golden: dict[str, np.ndarray]
    """Recorded trajectory: observation, action, `next_carry` and extra output ports as
    [T, B, ...], and `reset` as bool [T, B], true where a row is reset before the step."""
    structure: Structure | None = None
    """What the network is made of; None in a bundle that does not say."""
    fingerprint: str = ""
    """SHA-256 of the manifest, and so of the whole: the manifest lists the hash of every file."""

    def artefact(self, key: str) -> Artefact:
        """Returns the artefact of that name.

        Raises:
            BundleError: if the bundle does not have it, listing those it has.
        """
        artefact = self.manifest.artefacts.get(key)
        if artefact is None:
            have = sorted(self.manifest.artefacts)
            raise BundleError(self.path, f"has no artefact {key!r}; it has {have}")
        return artefact

    def artefact_path(self, key: str) -> Path:
        """Returns the path of what a runtime loads: a file, or the directory of a SavedModel."""
        return self.path / self.artefact(key).entry

    def artefact_bytes(self, key: str, path: str | None = None) -> bytes:
        """Reads a file of an artefact, its entry by default, and checks it once more.

        A runtime that takes these bytes cannot be given a file that was changed since the bundle
        was read.

        Raises:
            BundleError: if the file is not what the manifest says.
        """
        artefact = self.artefact(key)
        for file in artefact.files:
            if file.path == (path or artefact.entry):
                return _read_checked(self.path, file)
        if path is not None:
            raise BundleError(self.path / path, f"is no file of the artefact {key!r}")
        raise BundleError(self.artefact_path(key), "is a directory, not a file")


def read_bundle(path: str | Path) -> Bundle:
    """Reads and checks a bundle.

    Reads every file once; blocks for as long as that takes.

    Args:
        path: the bundle's directory.

    Returns:
        The bundle, initial carry and golden trajectory in memory.

    Raises:
        BundleError: naming the file and the reason.
    """
    root = to_path(path)
    if not root.is_dir():
        found = "is not a directory" if root.exists() else "does not exist"
        raise BundleError(root, f"{found}; expected the directory of a bundle")
    file = root / MANIFEST_FILE
    _check_regular(root, MANIFEST_FILE)
    if (size := file.stat().st_size) > MAX_MANIFEST_BYTES:
        raise BundleError(file, f"{size} bytes, larger than the limit of {MAX_MANIFEST_BYTES}")
    data = _read(file, MAX_MANIFEST_BYTES + 1)
    manifest = parse_manifest(data, file)
    for artefact in manifest.artefacts.values():
        _check_listing(root, artefact)
        for entry in artefact.files:
            _verify(root, entry)
    contents = {entry.path: _read_checked(root, entry) for entry in manifest.files}
    initial_carry = decode_tensors(contents[INITIAL_CARRY_FILE], root / INITIAL_CARRY_FILE)
    golden = decode_tensors(contents[GOLDEN_FILE], root / GOLDEN_FILE)
    check_recordings(manifest, initial_carry, golden, root)
    structure = None
    if STRUCTURE_FILE in contents:
        structure = parse_structure(contents[STRUCTURE_FILE], root / STRUCTURE_FILE)
    fingerprint = hashlib.sha256(data).hexdigest()
    return Bundle(root, manifest, initial_carry, golden, structure, fingerprint)


def to_path(path: Any) -> Path:
    """Returns what a caller gave as the name of a directory as a `Path`.

    Raises:
        BundleError: if it is neither text nor a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise BundleError(repr(path), f"is a {type(path).__name__}, expected a str or a Path")
    return Path(path)


def check_recordings(
    manifest: Manifest,
    initial_carry: Mapping[str, np.ndarray],
    golden: Mapping[str, np.ndarray],
    root: Path,
) -> None:
    """Checks initial carry and golden trajectory against the ports.

    Raises:
        BundleError: naming file and tensor.
    """
    file = root / INITIAL_CARRY_FILE
    check_tensors(initial_carry, port_shapes(manifest.carry_ports), file)
    file = root / GOLDEN_FILE
    reset = golden.get(RESET)
    if reset is None or reset.ndim != 2 or reset.dtype != np.bool_ or 0 in reset.shape:
        found = "missing" if reset is None else f"{reset.dtype}{list(reset.shape)}"
        raise BundleError(file, f"tensor {RESET!r} is {found}, expected bool[T, B], neither zero")
    if manifest.batch_size not in (None, reset.shape[1]):
        raise BundleError(
            file, f"has {reset.shape[1]} rows, but the bundle's batch size is {manifest.batch_size}"
        )
    lead = (reset.shape[0], reset.shape[1])
    outputs = [*manifest.action_ports, *manifest.extra_output_ports]
    expected = port_shapes([*manifest.observation_ports, *outputs], lead)
    for port in manifest.carry_ports:
        expected[port.next_name] = ((*lead, *port.shape), port.dtype)
    expected[RESET] = (lead, "bool")
    check_tensors(golden, expected, file)


def _check_listing(root: Path, artefact: Artefact) -> None:
    """Refuses files below an artefact's directory that the manifest does not list."""
    listed = {file.path for file in artefact.files}
    for directory, directories, files in os.walk(root / artefact.entry.split("/")[0]):
        # A link to a directory is not descended into, so it is judged like a file.
        links = [name for name in directories if (Path(directory) / name).is_symlink()]
        for name in [*files, *links]:
            relative = (Path(directory) / name).relative_to(root).as_posix()
            inside = any(path.startswith(relative + "/") for path in listed)
            if relative not in listed and not (name in links and inside):
                raise BundleError(
                    root / relative, "is not listed in the manifest; remove it or export again"
                )


def _check_regular(root: Path, relative: str) -> Path:
    """Returns the path of a file that exists, is a regular file and lies in the bundle."""
    file = root / relative
    try:
        resolved = file.resolve(strict=True)
        regular = stat.S_ISREG(resolved.stat().st_mode)
    except (OSError, RuntimeError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "is missing; copy the whole bundle again" if missing else f"unreadable: {error}"
        raise BundleError(file, reason) from error
    if not resolved.is_relative_to(root.resolve()):
        raise BundleError(file, "is a link to something outside the bundle")
    if not regular:
        raise BundleError(file, "is not a regular file")
    return file


def _verify(root: Path, entry: File) -> None:
    """Checks kind, size and hash of a listed file without keeping it in memory."""
    file = _check_regular(root, entry.path)
    _check_size(file, entry, file.stat().st_size)
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise BundleError(file, f"unreadable: {error}") from error
    _check_digest(file, entry, digest.hexdigest())


def _read_checked(root: Path, entry: File) -> bytes:
    """Returns the content of a listed file after checking that same content."""
    file = _check_regular(root, entry.path)
    _check_size(file, entry, file.stat().st_size)
    data = _read(file, entry.size + 1)
    _check_size(file, entry, len(data))
    _check_digest(file, entry, hashlib.sha256(data).hexdigest())
    return data


def _read(file: Path, limit: int) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise BundleError(file, f"unreadable: {error}") from error


def _check_size(file: Path, entry: File, size: int) -> None:
    if size != entry.size:
        change = "truncated" if size < entry.size else "altered"
        raise BundleError(
            file, f"{change}: {size} bytes, the manifest says {entry.size}; copy the bundle again"
        )


def _check_digest(file: Path, entry: File, digest: str) -> None:
    if digest != entry.sha256:
        raise BundleError(
            file,
            f"altered: SHA-256 is {digest[:16]}…, the manifest says {entry.sha256[:16]}…; "
            "copy the bundle again",
        )
