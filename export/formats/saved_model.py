"""The SavedModel artefact, portable (plain operations) or xla (one XlaCallModule operation)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from export.formats.canonical_saved_model import make_canonical
from export.formats.stablehlo import for_older_readers, without_directories
from export.formats.tensorflow_function import (
    portable_function,
    quiet_tensorflow,
    xla_function,
)
from export.half_dtypes import NOTE, half_details
from export.step import Step
from serving.manifest import Artefact

ENTRIES = {"portable": "saved_model", "xla": "saved_model_xla"}
"""Flavour → directory in the bundle, which is also the artefact's key."""


def write_saved_model(
    step: Step, directory: Path, flavour: Literal["portable", "xla"], function: Any = None
) -> Artefact:
    """Write the artefact below `directory` and return its manifest entry.

    Args:
        step: What to write.
        directory: The bundle under construction.
        flavour: `portable` runs in every TensorFlow; `xla` needs one built with XLA and about as
            new as the JAX that exported.
        function: The `tf.function`, if it exists already.
    """
    entry = ENTRIES[flavour]
    if function is None:
        function = portable_function(step) if flavour == "portable" else xla_function(step)
    with quiet_tensorflow(), without_directories():
        concrete = function.get_concrete_function()
        try:
            tf.saved_model.save(
                tf.Module(), str(directory / entry), signatures={"serving_default": concrete}
            )
        except tf.errors.OpError as error:  # of a disk that is full, say
            raise OSError(error.message) from error
    if flavour == "xla":
        _lower_version(directory / entry / "saved_model.pb")
    make_canonical(directory / entry)
    return Artefact(
        format="saved_model",
        flavour=flavour,
        entry=entry,
        details={
            "tensorflow_version": tf.__version__,
            "signature": "serving_default",
            **(
                half_details(step.portable, NOTE)
                if flavour == "portable"
                else half_details(step.closed)
            ),
        },
    )


def _lower_version(file: Path) -> None:
    """Re-serialize the StableHLO inside a SavedModel for older TensorFlow.

    jax2tf writes the newest version that JAX knows, which TensorFlow releases of the same month
    cannot read.
    """
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString(file.read_bytes())
    for graph in proto.meta_graphs:
        for function in graph.graph_def.library.function:
            for node in function.node_def:
                if node.op == "XlaCallModule":
                    node.attr["module"].s = for_older_readers(node.attr["module"].s)
    file.write_bytes(proto.SerializeToString(deterministic=True))
