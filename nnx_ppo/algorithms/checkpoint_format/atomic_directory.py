"""Directories that are there completely or not at all, whenever the process is killed."""

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

TEMPORARY_MARK = ".writing-"

RENAME_EXCHANGE = 2  # linux/fs.h
RENAME_SWAP = 2  # macOS, sys/stdio.h
AT_FDCWD = -100


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Gives a new directory to write in, which becomes ``target`` when the block ends well.

    Everything is on the disk before the one rename that makes it ``target``. A directory that is
    there already is replaced in the same rename, where the system can exchange two names (Linux
    and macOS on their usual file systems), and otherwise removed just before. After an exception
    the new directory is removed; after a kill the next writer in the same parent removes it.

    Args:
        target: The directory to create or replace. Parents are created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent)
    temporary, lock = _locked_sibling(target)
    try:
        yield temporary
        for directory, _, files in os.walk(temporary):
            for name in files:
                _flush(Path(directory, name))
            _flush(Path(directory))
        if target.exists():
            _replace(temporary, target)
        else:
            os.rename(temporary, target)
        _flush(target.parent)
    finally:
        # Half written after an exception, or what stood in target's place before.
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_directory(directory: Path) -> None:
    """Removes a directory so that a kill half way leaves no half of it under its name."""
    doomed = _sibling(directory)
    os.rename(directory, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Removes what processes left half written when they were killed.

    The lock on a directory that is being written ends with its writer, on whichever machine and in
    whichever container that ran. What cannot be locked, for lack of locks, stays.
    """
    for path in parent.glob(f".*{TEMPORARY_MARK}*"):
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked_sibling(target: Path) -> tuple[Path, int | None]:
    while True:
        temporary = _sibling(target)
        temporary.mkdir()
        try:
            lock = _lock(temporary)
        except OSError:
            return temporary, None
        # Between its creation and its lock another process may have taken it for a leftover.
        if lock is not None:
            return temporary, lock


def _sibling(target: Path) -> Path:
    return target.parent / f".{target.name}{TEMPORARY_MARK}{secrets.token_hex(8)}"


def _lock(directory: Path) -> int | None:
    """Returns a descriptor that holds the lock; None if another has it or the directory is gone.

    Raises:
        OSError: This file system has no locks.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The name may have gone, or to another directory, before the lock was had.
        if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _replace(new: Path, old: Path) -> None:
    """Puts ``new`` in the place of ``old``, which may end up under ``new``'s name."""
    if not _exchange(new, old):
        # No exchange on this file system. A kill between the two lines leaves neither under its
        # name, and then the checkpoint before this one is the last.
        remove_directory(old)
        os.rename(new, old)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two names in one step; False where that is not possible."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        status = library.renamex_np(*names, ctypes.c_uint(RENAME_SWAP))
    elif hasattr(library, "renameat2"):
        flags = ctypes.c_uint(RENAME_EXCHANGE)
        status = library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], flags)
    else:
        return False
    if status == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
