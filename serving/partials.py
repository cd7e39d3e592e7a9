"""Hidden names beside a target to write under, and what becomes of those whose writer was killed.

A writer holds a lock on what it writes. The system lets go of the lock when the process ends,
however it ends, so what is not locked was abandoned and the next writer to the same target removes
it. On a file system without locks nothing is removed, since nobody can tell.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from pathlib import Path

PARTIAL = ".partial"
"""Ending of the name of something not complete yet."""
REPLACED = ".replaced"
"""Ending of the name of a directory that is about to be replaced."""


class Partial:
    """A new directory or empty file beside its target, locked until `close`.

    Making one also removes what killed writers left beside the same target.

    Attributes:
        path: where to write.
    """

    def __init__(self, target: Path, *, directory: bool) -> None:
        """Creates it.

        Raises:
            OSError: if it cannot be created.
        """
        remove_abandoned(target)
        while True:
            self.path = sibling(target)
            if directory:
                self.path.mkdir()
            else:
                self.path.touch(exist_ok=False)
            try:
                self._descriptor = _lock(self.path)
            except OSError:
                self._descriptor = None
                return
            # Between its creation and its lock another process may have taken it for abandoned.
            if self._descriptor is not None:
                return

    def close(self) -> None:
        """Lets go of the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Removes what was written, as far as it is still there, and lets go of the lock."""
        _remove(self.path)
        self.close()


def sibling(path: Path, ending: str = PARTIAL) -> Path:
    """Returns a hidden, unused name in the directory of `path`."""
    return path.parent / f".{path.name}.{secrets.token_hex(6)}{ending}"


def remove_abandoned(target: Path) -> None:
    """Removes what killed writers left beside `target`.

    A directory that was moved aside by a writer killed before it put the new one in place is moved
    back. What a living process writes stays.
    """
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}({PARTIAL}|{REPLACED})")
    # What cannot be listed, locked or moved stays where it is: it harms nobody.
    with contextlib.suppress(OSError):
        for path in list(target.parent.iterdir()):
            match = pattern.fullmatch(path.name)
            if match is None:
                continue
            if match[1] == REPLACED and not os.path.lexists(target):
                os.rename(path, target)
            else:
                _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = _lock(path)
        if descriptor is not None:
            _remove(path)
            os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock(path: Path) -> int | None:
    """Returns a descriptor that holds the lock; None if another has it or `path` is gone.

    Raises:
        OSError: if this file system, or this system, has no locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OSError(errno.ENOTSUP, "this system has no file locks") from error
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The name may have been removed, or given to something else, before the lock was had.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
