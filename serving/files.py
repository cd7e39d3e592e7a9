"""Files and directories that appear complete or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from serving.partials import REPLACED, Partial, sibling

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def write_atomically(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Writes `data` beside `path`, flushes it to the disk and renames it over `path`.

    Blocks until the disk has the data. Nothing is left behind on a failure.

    Args:
        path: the file.
        data: what it holds afterwards.
        replace: whether a file that is there may be replaced, also one that appears meanwhile.

    Raises:
        FileExistsError: if there is one and it may not.
        OSError: if the file cannot be written.
    """
    write_stream_atomically(path, lambda stream: stream.write(data), replace=replace)


def write_stream_atomically(
    path: Path, write: Callable[[BinaryIO], Any], *, replace: bool = True
) -> None:
    """As `write_atomically`, for a file that is written piece by piece.

    Args:
        path: the file.
        write: writes what it holds afterwards to an open file.
        replace: whether a file that is there may be replaced, also one that appears meanwhile.

    Raises:
        FileExistsError: if there is one and it may not.
        OSError: if the file cannot be written.
    """
    partial = Partial(path, directory=False)
    try:
        with partial.path.open("wb") as stream:
            write(stream)
        sync(partial.path)
        if replace:
            os.replace(partial.path, path)
        else:
            _move_to_free_name(partial.path, path)
        sync(path.parent)
    finally:
        partial.remove()


def _move_to_free_name(source: Path, path: Path) -> None:
    """Gives the file `source` the name `path` in one step, unless something has it."""
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError:
        # No hard links there: an empty file takes the name first, which only one writer can do.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            os.replace(source, path)
        except BaseException:
            os.unlink(path)
            raise


def sync(path: Path) -> None:
    """Makes the disk hold what was written to a file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse to flush a directory; the rename is still in order.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Makes the disk hold every file and directory below `root`."""
    for directory, _, files in os.walk(root):
        for file in files:
            sync(Path(directory) / file)
        sync(Path(directory))


def move_directory(source: Path, target: Path, *, replace: bool) -> None:
    """Moves the directory `source` to `target`, or in the place of the directory that is there.

    On Linux the two are exchanged in one step, so that a reader finds the old or the new one at any
    time. Where that is not possible the old one is moved aside first and moved back on a failure.

    Args:
        source: a directory on the same file system.
        target: the name it gets.
        replace: whether a directory that is there, empty or not, may be replaced.

    Raises:
        FileExistsError: if there is one and it may not.
        OSError: if the move fails; `target` is then as it was.
    """
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        _replace_directory(source, target)
    sync(target.parent)


def _replace_directory(source: Path, target: Path) -> None:
    if _exchange(source, target):
        old = source
    else:
        old = sibling(target, REPLACED)
        try:
            os.rename(target, old)
            os.rename(source, target)
        except BaseException:  # an interrupt must not cost the old one either
            if old.exists() and not os.path.lexists(target):
                os.rename(old, target)
            raise
    # The new one is in place: what cannot be removed of the old one is left to the next writer.
    shutil.rmtree(old, ignore_errors=True)


def make_parents(directory: Path) -> list[Path]:
    """Creates `directory` with its parents and returns those made, innermost first.

    Raises:
        OSError: if one cannot be made; those made before it are removed again.
    """
    missing: list[Path] = []
    current = directory
    while not current.exists():
        missing.append(current)
        current = current.parent
    made: list[Path] = []
    try:
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            made.insert(0, path)
    except OSError:
        remove_empty(made)
        raise
    return made


def remove_empty(directories: list[Path]) -> None:
    """Removes the given directories as far as they are empty."""
    for directory in directories:
        # One that is in use by now was wanted by someone else, so it stays.
        with contextlib.suppress(OSError):
            directory.rmdir()


def _exchange(a: Path, b: Path) -> bool:
    """Exchanges two paths in one step; False where the system or file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    done = rename(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE)
    return done == 0
