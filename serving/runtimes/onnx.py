"""Steps an ONNX file with onnxruntime, on the CPU."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime

from serving.bundle import Bundle
from serving.errors import BundleError, ServingError
from serving.manifest import Manifest
from serving.runtimes.base import (
    BoundStep,
    Runtime,
    Step,
    Tensor,
    check_signature,
    input_ports,
    output_ports,
)
from serving.runtimes.onnx_external import read_external

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    **{f"tensor({sign}int{n})": f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)},
}

MAX_THREADS = 1024

_QUIET = 4  # fatal messages only; every failure reaches the caller as an exception anyway


class OnnxStep(BoundStep):
    """Runs the graph on the calling thread; the GIL is released meanwhile."""

    def __init__(
        self, manifest: Manifest, batch_size: int, session: onnxruntime.InferenceSession
    ) -> None:
        self._session = session
        super().__init__(manifest, batch_size)

    def _bound(self) -> Callable[[], object]:
        # An OrtValue made from an array on the CPU shares the array's memory.
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        binding = self._session.io_binding()
        for name, array in zip(input_ports(self.manifest), self._inputs(), strict=True):
            binding.bind_ortvalue_input(name, value(array))
        for name, array in zip(output_ports(self.manifest), self._outputs(), strict=True):
            binding.bind_ortvalue_output(name, value(array))
        # Without the checks of the method around it, which know their answers from the first step
        # on and take as long as a small network. A version without it is run through that method.
        inner = getattr(self._session, "_sess", None)
        direct = getattr(inner, "run_with_iobinding", None)
        if direct is None:
            return functools.partial(self._session.run_with_iobinding, binding)
        # No RunOptions: looking into them, some versions raise and catch an error in each run.
        return functools.partial(direct, binding._iobinding, None)


class ArtefactRuntime(Runtime):
    """An ONNX model in memory, shared by all sessions of a policy.

    Args:
        bundle: the bundle that has the artefact.
        artefact: its name there.
        threads: threads within an operator. One is best for networks of up to a few hundred units:
            more cost wake-ups, and the runtime's own thread pool would compete with the loop.
    """

    options = ("threads",)

    def __init__(self, bundle: Bundle, artefact: str, *, threads: int = 1) -> None:
        super().__init__(bundle, artefact)
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise ServingError(
                f"threads is {threads!r}, expected an integer from 1 to {MAX_THREADS}"
            )
        # The checked bytes and not the path: a file replaced since then is never loaded.
        model = bundle.artefact_bytes(artefact)
        options = _session_options(threads)
        # onnxruntime shares their memory, so they live as long as the session.
        self._weights = self._external_weights(model, bundle, artefact)
        if self._weights:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(w) for w in self._weights.values()]
            options.add_external_initializers(list(self._weights), values)
        self._session = self._load(model, options)
        check_signature(
            self.file,
            self.manifest,
            {str(port.name): _describe(port) for port in self._session.get_inputs()},
            {str(port.name): _describe(port) for port in self._session.get_outputs()},
        )

    def _make_step(self, batch_size: int) -> Step:
        return OnnxStep(self.manifest, batch_size, self._session)

    def _external_weights(
        self, model: bytes, bundle: Bundle, artefact: str
    ) -> dict[str, np.ndarray]:
        directory = bundle.artefact(artefact).entry.rpartition("/")[0]
        listed = {file.path for file in bundle.artefact(artefact).files}

        def read_file(name: str) -> bytes:
            path = f"{directory}/{name}"
            if path not in listed:
                raise BundleError(
                    self.file,
                    f"keeps weights in {name[:80]!r}, which the manifest does not list; export it "
                    "again",
                )
            return bundle.artefact_bytes(artefact, path)

        try:
            return read_external(model, read_file)
        except ValueError as error:
            raise BundleError(self.file, f"is no ONNX model: {error}; export it again") from error

    def _load(
        self, model: bytes, options: onnxruntime.SessionOptions
    ) -> onnxruntime.InferenceSession:
        result: list[Any] = []

        def create() -> None:
            try:
                result.append(
                    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
                )
            except Exception as error:
                result.append(error)

        # The first session that a process creates with denormals flushed leaves that mode on in the
        # creating thread, for NumPy and all else. So it is a thread that ends here.
        thread = threading.Thread(target=create)
        thread.start()
        thread.join()
        if isinstance(result[0], Exception):
            raise BundleError(
                self.file, f"onnxruntime cannot load it: {result[0]}; export it again"
            ) from result[0]
        return result[0]


def _describe(port: Any) -> Tensor:
    shape = tuple(size if isinstance(size, int) else None for size in port.shape or ())
    # Every tensor has a batch axis, so no axes at all means that the file does not say.
    return Tensor(shape or None, _DTYPES.get(port.type) or str(port.type))


def _session_options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _QUIET
    # Threads that spin while they wait would take a core from the robot's other work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options
