"""A bundle together with a runtime that steps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from serving.bundle import Bundle, read_bundle
from serving.errors import ServingError
from serving.manifest import Manifest, Metadata
from serving.runtimes import Runtime, check_runtime_name, load_runtime
from serving.session import Session


class Policy:
    """A loaded policy. It holds no carry: sessions do, and any number of them may be made.

    Use `load_policy` to get one.
    """

    def __init__(self, bundle: Bundle, runtime_name: str, runtime: Runtime) -> None:
        self.bundle = bundle
        self.runtime_name = runtime_name
        self._runtime = runtime

    @property
    def manifest(self) -> Manifest:
        """What the bundle says about itself: ports, versions, artefacts."""
        return self.bundle.manifest

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.manifest.name

    @property
    def metadata(self) -> Metadata:
        """Joint names, action scale and what else the robot has to know."""
        return self.manifest.metadata

    @property
    def control_rate_hz(self) -> float | None:
        """The rate at which the policy was trained to act, in Hz, if the bundle says so."""
        return self.manifest.control_rate_hz

    @property
    def batch_size(self) -> int | None:
        """The only batch size the artefact takes, or None if it takes any."""
        return self.manifest.batch_size

    def initial_carry(self, batch_size: int | None = None) -> dict[str, np.ndarray]:
        """Returns the carry of fresh environments, by port name.

        Args:
            batch_size: number of rows, or None for one row without a batch axis.

        Raises:
            ServingError: if the batch size is neither None nor an integer above 0.
        """
        carry = self.bundle.initial_carry
        rows = _checked_rows(batch_size)
        if batch_size is None:
            return {name: value.copy() for name, value in carry.items()}
        return {name: np.repeat(value[None], rows, 0) for name, value in carry.items()}

    def session(self, batch_size: int | None = None, *, check_finite: bool = True) -> Session:
        """Makes a session with a fresh carry.

        Allocates all memory that its steps need, and runs the artefact once to warm it up. May be
        called from any thread; the sessions of a policy do not influence each other.

        Args:
            batch_size: number of robots, each a row of every array; None for one robot whose
                observations and actions have no batch axis.
            check_finite: refuse observations with NaN or infinities.

        Raises:
            ServingError: if the batch size is not one that the bundle takes.
            BundleError: if the artefact does not run.
        """
        rows = _checked_rows(batch_size)
        if self.batch_size not in (None, rows):
            raise ServingError(
                f"batch_size is {batch_size}, but {self.bundle.path} was exported for a batch of "
                f"{self.batch_size} only; use that, or export it with batch_size=None"
            )
        step = self._runtime.bind(rows)
        return Session(
            self.bundle,
            step,
            batch_size,
            check_finite=check_finite,
            runtime=self.runtime_name,
        )

    def __repr__(self) -> str:
        """Names the policy and its runtime."""
        return f"Policy({self.name!r}, runtime={self.runtime_name!r})"


def load_policy(path: str | Path | Bundle, runtime: str = "onnx", **options: Any) -> Policy:
    """Reads a bundle and loads its artefact for a runtime.

    Imports the runtime's package: some hundred milliseconds for onnxruntime, seconds for JAX or
    TensorFlow.

    Args:
        path: directory of the bundle, or a bundle that has been read.
        runtime: "onnx", "c", "litert", "stablehlo", "saved_model" or "saved_model_xla".
        **options: of the runtime: `threads` for "onnx" and "litert", `compiler` for "c".

    Raises:
        RuntimeUnavailableError: if the runtime or option is unknown, the runtime is not installed,
            or the bundle has no artefact for it.
        BundleError: if the bundle cannot be read or its artefact does not match its manifest.
    """
    check_runtime_name(runtime)
    bundle = path if isinstance(path, Bundle) else read_bundle(path)
    return Policy(bundle, runtime, load_runtime(bundle, runtime, options))


def _checked_rows(batch_size: int | None) -> int:
    rows = 1 if batch_size is None else batch_size
    if type(rows) is not int or rows < 1:
        raise ServingError(f"batch_size is {batch_size!r}, expected None or an integer above 0")
    return rows
