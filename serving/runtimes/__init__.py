"""Runtimes by name. None of them is imported before it is asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from serving.bundle import Bundle
from serving.errors import RuntimeUnavailableError
from serving.extras import import_extra
from serving.runtimes.base import Runtime, Step

__all__ = ["RUNTIMES", "Runtime", "RuntimeEntry", "Step", "check_runtime_name", "load_runtime"]


@dataclasses.dataclass(frozen=True)
class RuntimeEntry:
    """Where a runtime is defined and what it needs."""

    module: str
    """Module with a class `ArtefactRuntime`."""
    package: str
    """The package it imports."""
    extra: str
    """The extra of nnx-ppo-deploy that installs that package."""


_SAVED_MODEL = RuntimeEntry("serving.runtimes.saved_model", "tensorflow", "saved-model")

RUNTIMES = {
    "c": RuntimeEntry("serving.runtimes.c", "ctypes", "serving"),
    "litert": RuntimeEntry("serving.runtimes.litert", "ai_edge_litert", "litert"),
    "onnx": RuntimeEntry("serving.runtimes.onnx", "onnxruntime", "serving"),
    "saved_model": _SAVED_MODEL,
    "saved_model_xla": _SAVED_MODEL,
    "stablehlo": RuntimeEntry("serving.runtimes.stablehlo", "jax", "stablehlo"),
}
"""Runtime for each artefact; the names of both are the same."""


def check_runtime_name(name: str) -> None:
    """Checks that a runtime of that name exists, whether or not it is installed.

    Raises:
        RuntimeUnavailableError: listing the known names.
    """
    if not isinstance(name, str) or name not in RUNTIMES:
        raise RuntimeUnavailableError(f"unknown runtime {name!r}; known are {sorted(RUNTIMES)}")


def load_runtime(bundle: Bundle, name: str, options: dict[str, Any]) -> Runtime:
    """Imports a runtime and loads the artefact of the same name.

    Args:
        bundle: a bundle that has been read.
        name: one of `RUNTIMES`.
        options: keyword arguments of the runtime's class.

    Raises:
        RuntimeUnavailableError: if the name or an option is unknown, its package is not installed,
            or the bundle has no such artefact.
        BundleError: if the artefact cannot be loaded or does not match the manifest.
    """
    check_runtime_name(name)
    if name not in bundle.manifest.artefacts:
        raise RuntimeUnavailableError(
            f"{bundle.path}: has no artefact for the runtime {name!r}; it has "
            f"{sorted(bundle.manifest.artefacts)}; use one of these or export the format too"
        )
    entry = RUNTIMES[name]
    module = import_extra(
        entry.module, extra=entry.extra, what=f"the runtime {name!r}", package=entry.package
    )
    known = module.ArtefactRuntime.options
    if unknown := sorted(set(options) - set(known)):
        raise RuntimeUnavailableError(
            f"the runtime {name!r} has no option {unknown[0]!r}; it has {sorted(known)}"
        )
    return module.ArtefactRuntime(bundle, name, **options)
