"""The StableHLO artefact: what `jax.export` serializes, readable by older and newer JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax import export as jax_export

from export.half_dtypes import half_details
from export.step import Step
from serving.manifest import Artefact

STABLEHLO_VERSION = "1.13.7"
"""Target of the serialization. jax.export picks a version that only a JAX about as new can read,
since a symbolic batch adds custom calls; this one is read by every current release."""

ENTRY = "stablehlo/policy.bin"
_FILE_NAMES = "jax_hlo_source_file_canonicalization_regex"
"""JAX's option with what to leave out of a source file's name."""


def export_step(step: Step, platforms: tuple[str, ...] = ("cpu",)) -> jax_export.Exported:
    """Lower `step` with `jax.export` and serialize its module for `STABLEHLO_VERSION`."""
    with without_directories():
        lower = jax_export.export(jax.jit(step.function()), platforms=platforms)
        exported = lower(*step.input_specs())
    return dataclasses.replace(
        exported, mlir_module_serialized=for_older_readers(exported.mlir_module_serialized)
    )


@contextlib.contextmanager
def without_directories() -> Iterator[None]:
    """Inside, JAX names source files in what it lowers without the directory they lie in.

    The same step is then the same bytes on another machine, and tells nobody about this one.
    """
    before = getattr(jax.config, _FILE_NAMES)
    jax.config.update(_FILE_NAMES, r".*[/\\]")
    try:
        yield
    finally:
        jax.config.update(_FILE_NAMES, before)


def for_older_readers(module: bytes) -> bytes:
    """Re-serialize a portable StableHLO artefact for `STABLEHLO_VERSION`."""
    from jaxlib.mlir.dialects import stablehlo

    program = stablehlo.deserialize_portable_artifact_str(module)
    return stablehlo.serialize_portable_artifact_str(program, STABLEHLO_VERSION)


def write_stablehlo(step: Step, directory: Path, **options: Any) -> Artefact:
    """Write the artefact below `directory` and return its manifest entry."""
    exported = export_step(step, **options)
    target = directory / ENTRY
    target.parent.mkdir(parents=True)
    target.write_bytes(exported.serialize())
    return Artefact(
        format="stablehlo",
        entry=ENTRY,
        details={
            "stablehlo_version": STABLEHLO_VERSION,
            "calling_convention_version": int(exported.calling_convention_version),
            "platforms": ",".join(exported.platforms),
            "jaxlib_version": importlib.metadata.version("jaxlib"),
            **half_details(step.closed),
        },
    )
