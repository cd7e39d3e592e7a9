"""Compiles C with the system's compiler and keeps the shared object, per user.

The cache is `$XDG_CACHE_HOME/nnx-ppo/c`, else `~/.cache/nnx-ppo/c`. A file's name is the hash of
sources, flags and all that the compiler says about itself and this processor, so that a home
directory shared by different machines serves each its own. What is in the cache is run: a directory
or file that belongs to someone else, or that others may write, is refused.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serving.errors import RuntimeUnavailableError
from serving.files import sync

COMPILERS = ("cc", "gcc", "clang")
"""Tried in this order where the environment variable `CC` names none."""

FLAGS = (
    "-std=c99",
    "-O3",
    # Values are rounded as everywhere else. Not -ffast-math: NaN and infinities are to be kept.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    # Counters in the carry run over as they do in all other formats.
    "-fwrapv",
    "-fPIC",
    "-shared",
)

_NATIVE = ("-march=native", "-mcpu=native")
_COMPILE_SECONDS = 600


class CacheError(RuntimeUnavailableError):
    """The cache of compiled policies cannot be used, or not safely."""


def find_compiler(given: str | None) -> list[str]:
    """Returns the command of the C compiler.

    Args:
        given: a command; None for `CC` of the environment, else the first of `COMPILERS`.

    Raises:
        RuntimeUnavailableError: if there is none.
    """
    named = given or os.environ.get("CC")
    for command in [named] if named else COMPILERS:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise RuntimeUnavailableError(
                f"the C compiler {command!r} is no command: {error}; check the environment "
                "variable CC"
            ) from error
        if words and (found := shutil.which(words[0])):
            return [found, *words[1:]]
    tried = repr(named) if named else " nor ".join(COMPILERS)
    raise RuntimeUnavailableError(
        f"the runtime 'c' needs a C compiler, and {tried} is not found; install one (Debian: "
        "apt-get install gcc, macOS: xcode-select --install), or name one in the environment "
        "variable CC"
    )


def build(
    compiler: Sequence[str], sources: Mapping[str, bytes], main: str, *, anew: bool = False
) -> Path:
    """Returns the shared object made of `main`, compiling it unless the cache has it.

    Blocks for as long as the compiler takes: a second for small networks. Two processes that
    compile the same do not disturb each other.

    Args:
        compiler: command of the compiler.
        sources: text by file name.
        main: the source to compile; it may include the others.
        anew: compile it also if the cache has it, and replace that.

    Raises:
        CacheError: if the cache cannot be written or is not the user's own.
        RuntimeUnavailableError: if the compiler refuses.
    """
    flags = [*FLAGS, *_native_flags(compiler)]
    name = _hash([_identity(compiler, flags), "\0".join([*compiler, *flags]), main], sources)
    directory = _cache_directory()
    target = directory / f"{name}.so"
    if _is_own_file(target) and not anew:
        return target
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".compiling-") as text:
            work = Path(text)
            for file, data in sources.items():
                (work / file).write_bytes(data)
            _run([*compiler, *flags, "-o", "policy.so", main, "-lm"], work)
            os.chmod(work / "policy.so", 0o700)
            # Else a power cut could leave the name without its content, for every start after it.
            sync(work / "policy.so")
            os.replace(work / "policy.so", target)
        sync(directory)
    except OSError as error:
        raise CacheError(
            f"{directory}: cannot be written: {error}; name another directory in XDG_CACHE_HOME"
        ) from error
    return target


def _hash(texts: Sequence[str], sources: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    parts = [text.encode() for text in texts]
    for file in sorted(sources):
        parts += [file.encode(), sources[file]]
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _native_flags(compiler: Sequence[str]) -> list[str]:
    """Returns the flag for this very processor, where the compiler has one."""
    for flag in _NATIVE:
        if _preprocess(compiler, [flag]).returncode == 0:
            return [flag]
    return []


def _identity(compiler: Sequence[str], flags: Sequence[str]) -> str:
    """Returns the macros that the compiler defines: its version and what the processor can do."""
    done = _preprocess(compiler, flags)
    if done.returncode:
        raise RuntimeUnavailableError(
            f"{compiler[0]} does not compile C99: {done.stderr.strip()[:2000]}; name another "
            "compiler in the environment variable CC"
        )
    return done.stdout


def _preprocess(compiler: Sequence[str], flags: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [*compiler, *flags, "-dM", "-E", "-x", "c", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailableError(
            f"{compiler[0]} cannot be run: {error}; name another compiler in the environment "
            "variable CC"
        ) from error


def _run(command: Sequence[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_COMPILE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeUnavailableError(
            f"{command[0]} was not done after {_COMPILE_SECONDS} s"
        ) from error
    if done.returncode:
        raise RuntimeUnavailableError(
            f"{' '.join(command)} failed with status {done.returncode}: "
            f"{done.stderr.strip()[:2000]}; name another compiler in the environment variable CC"
        )


def _cache_directory() -> Path:
    """Returns the directory, made if it is missing, once it is sure to be the user's own."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    except RuntimeError as error:
        raise CacheError(
            f"there is no home directory to keep what is compiled in: {error}; name a directory in "
            "XDG_CACHE_HOME"
        ) from error
    directory = root / "nnx-ppo" / "c"
    try:
        for part in (root, directory.parent, directory):
            part.mkdir(mode=0o700, parents=part == root, exist_ok=True)
        for part in (directory.parent, directory):
            _check_own(part, part.lstat(), stat.S_ISDIR, "directory")
    except OSError as error:
        raise CacheError(
            f"{directory}: cannot be made: {error}; name another directory in XDG_CACHE_HOME"
        ) from error
    return directory


def _is_own_file(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    _check_own(path, found, stat.S_ISREG, "regular file")
    return True


def _check_own(
    path: Path, found: os.stat_result, is_kind: Callable[[int], bool], kind: str
) -> None:
    wrong = None
    if not is_kind(found.st_mode):
        wrong = f"is no {kind}"
    elif found.st_uid != os.geteuid():
        wrong = f"belongs to the user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = f"can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    if wrong:
        raise CacheError(
            f"{path}: {wrong}; what lies there would be run, so it is not used. Remove it, or name "
            "another directory in XDG_CACHE_HOME"
        )
