"""The LiteRT artefact: one flatbuffer of the portable step, for phones and small computers."""

from __future__ import annotations

import re
from pathlib import Path

import tensorflow as tf

from export.errors import ExportError
from export.formats.tensorflow_function import portable_function, quiet_tensorflow
from export.half_dtypes import NOTE, half_details
from export.step import Step
from serving.manifest import Artefact

ENTRY = "litert/policy.tflite"
SIGNATURE = "serving_default"
"""Name that TensorFlow's converter gives to the only function; its tensors are the ports."""


def write_litert(step: Step, directory: Path) -> Artefact:
    """Write the artefact below `directory` and return its manifest entry.

    Only operations that every build of LiteRT has, none of TensorFlow's own; any batch size, or the
    fixed one of the step. Weights and activations are float32.

    Raises:
        ExportError: LiteRT has no operation for something that the step does.
        UnsupportedOperationError: There is no rule for something that the step does.
    """
    with quiet_tensorflow():
        concrete = portable_function(step).get_concrete_function()
        converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], tf.Module())
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            model = converter.convert()
        except Exception as error:  # of several unrelated classes
            raise ExportError(
                f"LiteRT cannot hold this step: {_reason(str(error))}; export to another format "
                "(formats=...), or rewrite what the network does there"
            ) from error
    target = directory / ENTRY
    target.parent.mkdir(parents=True)
    target.write_bytes(model)
    return Artefact(
        format="litert",
        entry=ENTRY,
        details={
            "tensorflow_version": tf.__version__,
            "signature": SIGNATURE,
            **half_details(step.portable, NOTE),
        },
    )


def _reason(message: str) -> str:
    """Return what a converter's message of very many lines says."""
    details = re.findall(r"^\s*tf\.(\w+)\((.*?)\) ->", message, re.MULTILINE)
    if not details:
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        return (lines or ["no reason given"])[-1][-300:]
    names = sorted({name for name, _ in details})
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    types = {kind for _, given in details for kind in re.findall(r"[x<]([a-z]\w*)>", given)}
    return f"it has no {', '.join(names[:5])}{more} on {', '.join(sorted(types))}"
