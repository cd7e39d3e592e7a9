"""Steps a TensorFlow SavedModel through its `serving_default` signature, on the CPU.

TensorFlow's own dispatch takes some hundred microseconds per step; this runtime is for servers and
for checking an artefact, less for a robot.
"""

from __future__ import annotations

import os
from typing import Any

# Has to be said before TensorFlow is loaded; a user's own choice wins.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

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

SIGNATURE = "serving_default"


class SavedModelStep(Step):
    """Copies inputs into tensors, calls the signature and copies its outputs back."""

    def __init__(
        self, manifest: Manifest, batch_size: int, function: Any, arguments: dict[str, str]
    ) -> None:
        super().__init__(manifest, batch_size)
        self._function = function
        self._arguments = [arguments[name] for name in input_ports(manifest)]
        self._names = list(output_ports(manifest))

    def run(self) -> None:
        """Runs the signature's function."""
        with tf.device("/CPU:0"):
            inputs = zip(self._arguments, self._inputs(), strict=True)
            results = self._function(**{name: tf.constant(array) for name, array in inputs})
        self._store([results[name].numpy() for name in self._names], self._names)


class ArtefactRuntime(Runtime):
    """A SavedModel in memory, shared by all sessions of a policy."""

    options = ()

    def __init__(self, bundle: Bundle, artefact: str) -> None:
        super().__init__(bundle, artefact)
        try:
            with tf.device("/CPU:0"):
                # Kept, since its variables live only as long as it does.
                self._model: Any = tf.saved_model.load(str(self.file))
        except Exception as error:
            raise BundleError(
                self.file, f"TensorFlow cannot load it: {error}; export it again"
            ) from error
        if SIGNATURE not in self._model.signatures:
            raise BundleError(self.file, f"has no signature {SIGNATURE!r}; export it again")
        self._function = self._model.signatures[SIGNATURE]
        specs = self._function.structured_input_signature[1]
        self._arguments = self._name_arguments(specs)
        check_signature(
            self.file,
            self.manifest,
            {name: _describe(specs[key]) for name, key in self._arguments.items()},
            {key: _describe(spec) for key, spec in self._function.structured_outputs.items()},
        )

    def _make_step(self, batch_size: int) -> Step:
        return SavedModelStep(self.manifest, batch_size, self._function, self._arguments)

    def _name_arguments(self, specs: dict[str, Any]) -> dict[str, str]:
        """Returns the signature's argument for each port.

        TensorFlow replaces the dots of a name to make an argument and keeps the original in the
        argument's specification.
        """
        ports = input_ports(self.manifest)
        return {spec.name if spec.name in ports else key: key for key, spec in specs.items()}


def _describe(spec: Any) -> Tensor:
    shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
    return Tensor(shape, spec.dtype.name)
