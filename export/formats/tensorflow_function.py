"""The step as a TensorFlow function, by our rules or by jax2tf."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from export.formats.stablehlo import export_step
from export.lowering import Lowering
from export.step import Step


def input_signature(step: Step) -> list[tf.TensorSpec]:
    """Return the specs of the inputs, named after the ports."""
    return [
        tf.TensorSpec(
            (step.batch_size, *port.shape), tf.as_dtype(np.dtype(port.dtype)), name=port.name
        )
        for port in step.inputs
    ]


def portable_function(step: Step) -> Any:
    """Return a `tf.function` of plain TensorFlow operations; outputs in a dict by name."""

    def portable(*inputs: Any) -> dict[str, Any]:
        batch: Any = step.batch_size
        if batch is None:
            batch = tf.shape(inputs[0])[0]
        outputs = Lowering(batch).run_step(step.portable, inputs)
        return _named(step, outputs)

    return tf.function(portable, autograph=False, input_signature=input_signature(step))


def xla_function(step: Step) -> Any:
    """Return a `tf.function` that holds the StableHLO of the step in one operation."""
    from jax.experimental import jax2tf

    exported = export_step(step)
    polymorphic = ["b, ..." if step.batch_size is None else None for _ in step.inputs]
    converted = jax2tf.convert(
        lambda *inputs: exported.call(*inputs), polymorphic_shapes=polymorphic, with_gradient=False
    )

    def xla(*inputs: Any) -> dict[str, Any]:
        return _named(step, converted(*inputs))

    return tf.function(xla, autograph=False, input_signature=input_signature(step))


def _named(step: Step, outputs: Any) -> dict[str, Any]:
    named = {}
    for name, port, value in zip(step.output_names, step.output_ports, outputs, strict=True):
        value = tf.ensure_shape(value, (step.batch_size, *port.shape))
        # An output may be an input or another output; each gets a tensor of its own.
        named[name] = tf.identity(value)
    return named


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Keep TensorFlow's remarks on parameter names and asset counts off the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow", "tf2onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
