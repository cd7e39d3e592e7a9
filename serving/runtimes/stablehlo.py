"""Steps a serialized `jax.export` artefact with JAX, on the CPU.

The only module of this package that imports JAX.
"""

from __future__ import annotations

import contextlib
from typing import Any

import flatbuffers  # noqa: F401  (jax.export needs it and would say so only on the first use)
import jax
import numpy as np
from jax import export as jax_export

from serving.bundle import Bundle
from serving.errors import BundleError
from serving.manifest import Manifest
from serving.runtimes.base import (
    Runtime,
    Step,
    Tensor,
    check_signature,
    input_ports,
    output_ports,
)


class StableHloStep(Step):
    """Calls the compiled step and copies its outputs."""

    def __init__(self, manifest: Manifest, batch_size: int, function: Any) -> None:
        super().__init__(manifest, batch_size)
        self._function = function
        self._names = list(output_ports(manifest))
        self._device = jax.devices("cpu")[0]
        # Without this JAX would take a 64-bit port for a 32-bit one.
        wide = any(array.dtype.itemsize == 8 for array in [*self._inputs(), *self._outputs()])
        self._precision = (lambda: jax.enable_x64(True)) if wide else contextlib.nullcontext

    def run(self) -> None:
        """Runs the step and waits for its result."""
        with self._precision(), jax.default_device(self._device):
            results = self._function(*self._inputs())
            self._store([np.asarray(result) for result in results], self._names)


class ArtefactRuntime(Runtime):
    """An exported function, compiled anew for each batch size that a session asks for."""

    options = ()

    def __init__(self, bundle: Bundle, artefact: str) -> None:
        super().__init__(bundle, artefact)
        data = bundle.artefact_bytes(artefact)
        try:
            exported = jax_export.deserialize(bytearray(data))
        except Exception as error:
            raise BundleError(
                self.file,
                f"JAX {jax.__version__} cannot read it: {error}; export it again, or use the JAX "
                f"it was made with ({self.manifest.versions.get('jax', 'unknown')}) or newer",
            ) from error
        if "cpu" not in exported.platforms:
            raise BundleError(
                self.file, f"is made for {list(exported.platforms)}, not for the CPU; export again"
            )
        inputs, outputs = input_ports(self.manifest), output_ports(self.manifest)
        for kind, found, ports in (
            ("inputs", exported.in_avals, inputs),
            ("outputs", exported.out_avals, outputs),
        ):
            if len(found) != len(ports):
                raise BundleError(
                    self.file, f"has {len(found)} {kind}, the manifest says {len(ports)}"
                )
        check_signature(
            self.file,
            self.manifest,
            {name: _describe(a) for name, a in zip(inputs, exported.in_avals, strict=True)},
            {name: _describe(a) for name, a in zip(outputs, exported.out_avals, strict=True)},
        )
        self._function = jax.jit(exported.call)

    def _make_step(self, batch_size: int) -> Step:
        return StableHloStep(self.manifest, batch_size, self._function)


def _describe(aval: Any) -> Tensor:
    # A symbolic size is an expression and not an int.
    shape = tuple(size if isinstance(size, int) else None for size in aval.shape)
    return Tensor(shape, aval.dtype.name)
