"""Directories that are there completely or not at all, whenever the process is killed."""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import socket
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
    the new directory is removed.

    Args:
        target: The directory to create or replace. Parents are created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent)
    owner = f"{socket.gethostname()}-{os.getpid()}"
    temporary = target.parent / f".{target.name}{TEMPORARY_MARK}{owner}-{secrets.token_hex(4)}"
    temporary.mkdir()
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


def remove_directory(directory: Path) -> None:
    """Removes a directory so that a kill half way leaves no half of it under its name."""
    doomed = directory.parent / (
        f".{directory.name}{TEMPORARY_MARK}{socket.gethostname()}-{os.getpid()}"
        f"-{secrets.token_hex(4)}"
    )
    os.rename(directory, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Removes what processes of this machine left half written when they were killed."""
    for path in parent.glob(f".*{TEMPORARY_MARK}{socket.gethostname()}-*"):
        process_id = path.name.rsplit("-", 2)[1]
        if process_id.isdigit() and not _is_running(int(process_id)):
            shutil.rmtree(path, ignore_errors=True)


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


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
