"""Writing a bundle beside its target, so that the target is complete or does not appear."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from serving import files
from serving.bundle import Bundle, check_recordings, read_bundle, to_path
from serving.errors import BundleError
from serving.manifest import (
    GOLDEN_FILE,
    INITIAL_CARRY_FILE,
    MANIFEST_FILE,
    Artefact,
    File,
    Manifest,
)
from serving.manifest_json import encode_manifest
from serving.partials import Partial, remove_abandoned
from serving.structure import STRUCTURE_FILE, Structure, encode_structure
from serving.tensors import encode_tensors

_CHUNK = 1024 * 1024
_EXISTS = "exists already; choose another target or ask for it to be overwritten"


class BundleWriter:
    """Context in which a bundle is put together.

    Artefacts are written below `path`, each in a directory of its own; `commit` adds tensors and
    manifest and moves the whole to its target. Leaving the context without a commit, or by an
    exception, removes everything written.

    Example:
        with BundleWriter("policy", overwrite=True) as writer:
            (writer.path / "onnx").mkdir()
            (writer.path / "onnx" / "policy.onnx").write_bytes(model)
            bundle = writer.commit(manifest, initial_carry, golden)

    Args:
        target: directory to create; its missing parents are created too.
        overwrite: replace a bundle (or empty directory) that is there. Anything else that exists is
            refused in any case.
    """

    def __init__(self, target: str | Path, *, overwrite: bool = False) -> None:
        self.target = Path(os.path.abspath(to_path(target)))
        self._overwrite = overwrite
        self._partial: Partial | None = None
        self._parents: list[Path] = []
        self._committed = False

    @property
    def path(self) -> Path:
        """The temporary directory to write into.

        Raises:
            BundleError: outside the context or after `commit`.
        """
        if self._partial is None:
            raise BundleError(self.target, "is not being written: use the writer as a context")
        return self._partial.path

    def __enter__(self) -> BundleWriter:
        """Makes the temporary directory, so that a target that cannot be written fails at once.

        Removes what a killed writer to the same target has left.

        Raises:
            BundleError: if the target exists and may not be replaced, or cannot be written.
        """
        remove_abandoned(self.target)
        self._check_target()
        try:
            self._parents = files.make_parents(self.target.parent)
            self._partial = Partial(self.target, directory=True)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            files.remove_empty(self._parents)
            raise BundleError(
                self.target, f"cannot be written: {error}; choose another target"
            ) from error
        self._committed = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Removes what was written unless it was committed."""
        if self._partial is not None:
            self._partial.remove()
        if not self._committed:
            files.remove_empty(self._parents)
        self._partial = None

    def commit(
        self,
        manifest: Manifest,
        initial_carry: Mapping[str, Any],
        golden: Mapping[str, Any],
        structure: Structure | None = None,
        before_move: Callable[[Bundle], object] | None = None,
    ) -> Bundle:
        """Adds tensors and manifest, checks the whole as a reader would, and moves it in place.

        Args:
            manifest: its `files` and those of its artefacts are filled in here.
            initial_carry: carry port name to array without batch axis; JAX arrays and NumPy scalars
                are taken too, here and below.
            golden: observation, action, `next_carry` and extra output ports as [T, B, ...],
                `reset` bool [T, B].
            structure: what the network is made of.
            before_move: called with the bundle where it is being written, to add files that the
                manifest does not list.

        Returns:
            The bundle at its target.

        Raises:
            BundleError: if anything would be refused by a reader, or the target appeared meanwhile.
        """
        root = self.path
        carry = {name: np.asarray(value) for name, value in initial_carry.items()}
        trajectory = {name: np.asarray(value) for name, value in golden.items()}
        check_recordings(manifest, carry, trajectory, self.target)
        try:
            (root / INITIAL_CARRY_FILE).write_bytes(encode_tensors(carry))
            (root / GOLDEN_FILE).write_bytes(encode_tensors(trajectory))
            names = [INITIAL_CARRY_FILE, GOLDEN_FILE]
            if structure is not None:
                names.append(STRUCTURE_FILE)
                (root / STRUCTURE_FILE).write_bytes(
                    encode_structure(structure, self.target / STRUCTURE_FILE)
                )
            manifest = msgspec.structs.replace(
                manifest,
                files=[_describe(root, root / name) for name in names],
                artefacts={
                    key: msgspec.structs.replace(artefact, files=_list_files(root, artefact))
                    for key, artefact in manifest.artefacts.items()
                },
            )
            data = encode_manifest(manifest, self.target / MANIFEST_FILE)
            (root / MANIFEST_FILE).write_bytes(data)
            bundle = read_bundle(root)
            if before_move is not None:
                before_move(bundle)
            files.sync_tree(root)
            self._check_target()
            files.move_directory(root, self.target, replace=self._overwrite)
        except FileExistsError as error:
            raise BundleError(self.target, _EXISTS) from error
        except OSError as error:
            raise BundleError(self.target, f"cannot be written: {error}") from error
        self._committed = True
        if self._partial is not None:
            self._partial.close()
            self._partial = None
        return dataclasses.replace(bundle, path=self.target)

    def _check_target(self) -> None:
        target = self.target
        if not os.path.lexists(target):
            return
        if not self._overwrite:
            raise BundleError(target, _EXISTS)
        # overwrite=True given the wrong path must not cost anyone a directory of other things.
        is_directory = target.is_dir() and not target.is_symlink()
        if not is_directory or (any(target.iterdir()) and not (target / MANIFEST_FILE).is_file()):
            raise BundleError(target, "exists and is not a bundle, so it is not overwritten")


def _list_files(root: Path, artefact: Artefact) -> list[File]:
    directory = root / artefact.entry.split("/")[0]
    found = sorted(path for path in directory.rglob("*") if not path.is_dir())
    return [_describe(root, path) for path in found]


def _describe(root: Path, path: Path) -> File:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    relative = path.relative_to(root).as_posix()
    return File(path=relative, sha256=digest.hexdigest(), size=path.stat().st_size)
