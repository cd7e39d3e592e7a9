"""Steps a LiteRT flatbuffer with its interpreter, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from serving.bundle import Bundle
from serving.errors import BundleError, ServingError
from serving.manifest import Manifest
from serving.runtimes.base import (
    Runtime,
    Step,
    Tensor,
    check_signature,
    input_ports,
    output_ports,
)

SIGNATURE = "serving_default"

MAX_THREADS = 1024


class LiteRtStep(Step):
    """An interpreter of its own: it holds the tensors that a step works on."""

    def __init__(self, manifest: Manifest, batch_size: int, interpreter: Any) -> None:
        super().__init__(manifest, batch_size)
        inputs, outputs = _details(interpreter)
        self._names = list(output_ports(manifest))
        self._input_indices = [inputs[name]["index"] for name in input_ports(manifest)]
        for index, array in zip(self._input_indices, self._inputs(), strict=True):
            interpreter.resize_tensor_input(index, array.shape)
        interpreter.allocate_tensors()
        self._output_indices = [outputs[name]["index"] for name in self._names]
        self._set, self._get = interpreter.set_tensor, interpreter.get_tensor
        self._invoke = interpreter.invoke

    def run(self) -> None:
        """Copies the inputs in, runs the graph on the calling thread, copies the outputs out."""
        for index, array in zip(self._input_indices, self._inputs(), strict=True):
            self._set(index, array)
        self._invoke()
        self._store([self._get(index) for index in self._output_indices], self._names)


class ArtefactRuntime(Runtime):
    """A flatbuffer in memory; each session has an interpreter of its own.

    Args:
        bundle: the bundle that has the artefact.
        artefact: its name there.
        threads: threads within an operation. One is best for networks of up to a few hundred units.
    """

    options = ("threads",)

    def __init__(self, bundle: Bundle, artefact: str, *, threads: int = 1) -> None:
        super().__init__(bundle, artefact)
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise ServingError(
                f"threads is {threads!r}, expected an integer from 1 to {MAX_THREADS}"
            )
        self._threads = threads
        self._model = bundle.artefact_bytes(artefact)
        interpreter = self._interpreter()
        if SIGNATURE not in interpreter.get_signature_list():
            raise BundleError(self.file, f"has no signature {SIGNATURE!r}; export it again")
        inputs, outputs = _details(interpreter)
        check_signature(
            self.file,
            self.manifest,
            {name: _describe(details) for name, details in inputs.items()},
            {name: _describe(details) for name, details in outputs.items()},
        )

    def _make_step(self, batch_size: int) -> Step:
        return LiteRtStep(self.manifest, batch_size, self._interpreter())

    def _interpreter(self) -> Any:
        try:
            return Interpreter(model_content=self._model, num_threads=self._threads)
        except ValueError as error:
            raise BundleError(
                self.file, f"LiteRT cannot load it: {error}; export it again"
            ) from error


def _details(interpreter: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what the interpreter says about inputs and outputs, by name."""
    # The runner must be gone before the interpreter is told anything: it counts who refers to it.
    runner = interpreter.get_signature_runner(SIGNATURE)
    return runner.get_input_details(), runner.get_output_details()


def _describe(details: Any) -> Tensor:
    sizes = tuple(None if size < 0 else int(size) for size in details["shape_signature"])
    # Without any axis that is open, it repeats the shape or says nothing.
    shape = sizes or tuple(int(size) for size in details["shape"])
    return Tensor(shape or None, np.dtype(details["dtype"]).name)
