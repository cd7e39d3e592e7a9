"""Finds a Triton server on this machine: the one of NVIDIA's image, or that of a Python package."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from serving.errors import ServerError

INSTALL = 'pip install "nnx-ppo-deploy[triton]" && pip install --no-deps nvidia-pytriton'
"""Without its dependencies: they ask for NumPy 1, and only the server in the package is used."""


@dataclasses.dataclass(frozen=True)
class Installation:
    """A server and what it needs to run."""

    binary: Path
    """The program `tritonserver`."""
    python_backend: Path | None
    """Directory with the backend's library, without a stub; None to use the server's own."""
    stub: Path | None
    """The process that runs a Python model, for this version of Python; likewise."""
    libraries: tuple[Path, ...] = ()
    """Directories of shared libraries that the server needs."""


def find_installation(binary: str | Path | None = None) -> Installation:
    """Finds a server: the one given, that of the package nvidia-pytriton, or one on the path.

    Args:
        binary: path of a `tritonserver` with its backends where it expects them.

    Raises:
        ServerError: if there is none, or none for this version of Python; names what to install.
    """
    if binary is not None:
        path = Path(binary)
        if not path.is_file() or not os.access(path, os.X_OK):
            raise ServerError(f"{path}: is no program that can be run; give that of tritonserver")
        return Installation(path, None, None)
    found = _of_the_package()
    if found is not None:
        return found
    on_path = shutil.which("tritonserver")
    # The package tritonserver of the index is a placeholder without a server.
    if on_path is not None and Path(on_path).parent != Path(sys.executable).parent:
        return Installation(Path(on_path), None, None)
    raise ServerError(
        f"there is no Triton server here; install one with: {INSTALL} (Linux on x86_64 with glibc "
        "2.35 or newer; elsewhere use NVIDIA's image, see docs/fleet.md)"
    )


def _of_the_package() -> Installation | None:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    server = root / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        have = sorted(path.name for path in (server / "python_backend_stubs").glob("*"))
        raise ServerError(
            f"{root}: its server runs Python models with {', '.join(have) or 'no version'} of "
            f"Python, this is {version}; use one of these, or install a newer nvidia-pytriton"
        )
    return Installation(
        binary=server / "bin" / "tritonserver",
        python_backend=server / "backends" / "python",
        stub=stub,
        libraries=(root.parent / "nvidia_pytriton.libs", _python_library()),
    )


def _python_library() -> Path:
    """Returns the directory of libpython, into which the stub is linked at run time.

    Raises:
        ServerError: if this Python has none.
    """
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    directories = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"]
    directories += [f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/local/lib"]
    for directory in directories:
        if directory and (Path(directory) / name).exists():
            return Path(directory)
    raise ServerError(
        f"{sys.executable}: has no shared library {name} in any of {directories}, and the server "
        "needs it to run a Python model; install it (Debian: apt-get install "
        f"libpython{sys.version_info.major}.{sys.version_info.minor}) or use a Python built with "
        "--enable-shared"
    )
