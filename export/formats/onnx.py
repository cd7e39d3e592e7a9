"""The ONNX artefact: the portable TensorFlow graph through tf2onnx, named after the ports."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import tensorflow as tf
import tf2onnx
from onnx import helper
from tf2onnx.constants import ENV_TF2ONNX_CATCH_ERRORS

from export.errors import ExportError
from export.formats.onnx_canonical import make_canonical
from export.formats.onnx_cleanup import bodies_of, fuse_layers, use_relu
from export.formats.onnx_external import move_weights
from export.formats.onnx_handlers import HANDLERS, restore_rounding
from export.formats.onnx_options import HIGHEST_OPSET, OnnxOptions
from export.formats.onnx_storage import (
    FLOAT16_BOUND,
    INT8_BOUND,
    quantize_layers,
    store_as_float16,
)
from export.formats.tensorflow_function import input_signature, quiet_tensorflow
from export.half_dtypes import NOTE, half_details
from export.lowering import Lowering
from export.step import Step
from serving.manifest import Artefact

ENTRY = "onnx/policy.onnx"
BATCH = "batch"
"""Name of the symbolic batch axis."""


def convert(step: Step, opset: int = HIGHEST_OPSET) -> onnx.ModelProto:
    """Convert `step` to an ONNX model with one input and output per port.

    Raises:
        UnsupportedOperationError: An operation has no rule.
        ExportError: The result does not pass ONNX's full check, uses anything beyond it, or is not
            run by ONNX Runtime.
    """
    model = _with_port_names(_from_tensorflow(step, opset, Lowering), step)
    restore_rounding(model.graph)
    use_relu(model)
    fuse_layers(model)
    make_canonical(model)
    _check(model)
    return model


def operations(step: Step, lowering: type[Lowering]) -> list[tuple[str, str]]:
    """Return type and name of each operation, as another `lowering` names them."""
    model = _from_tensorflow(step, HIGHEST_OPSET, lowering)
    return [(node.op_type, node.name) for node in model.graph.node]


def _from_tensorflow(step: Step, opset: int, lowering: type[Lowering]) -> onnx.ModelProto:
    def positional(*inputs: Any) -> tuple[Any, ...]:
        batch: Any = step.batch_size
        if batch is None:
            batch = tf.shape(inputs[0])[0]
        outputs = lowering(batch, product=_unfused_product).run_step(step.portable, inputs)
        return tuple(tf.identity(value) for value in outputs)

    function = tf.function(
        positional, autograph=False, input_signature=_plainly_named(input_signature(step))
    )

    def converted() -> onnx.ModelProto:
        signature = _plainly_named(input_signature(step))
        model, _ = tf2onnx.convert.from_function(
            function, input_signature=signature, opset=opset, custom_op_handlers=HANDLERS
        )
        return model

    with quiet_tensorflow():
        try:
            with _without_copies():
                return converted()
        except ExportError:
            raise
        except Exception:
            # One of its optimizers may have failed, which costs no more than what that one does.
            return converted()


@contextlib.contextmanager
def _without_copies() -> Iterator[None]:
    """Keep tf2onnx from copying the graph before each of its optimizers, some 40 times.

    It does so to go on without one that fails, and takes a third longer for it.
    """
    before = os.environ.get(ENV_TF2ONNX_CATCH_ERRORS)
    os.environ[ENV_TF2ONNX_CATCH_ERRORS] = "FALSE"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENV_TF2ONNX_CATCH_ERRORS]
        else:
            os.environ[ENV_TF2ONNX_CATCH_ERRORS] = before


def write_onnx(
    step: Step, directory: Path, options: OnnxOptions, metadata: Mapping[str, str]
) -> Artefact:
    """Write the artefact below `directory` and return its manifest entry.

    Args:
        step: What to write.
        directory: The bundle under construction.
        options: Operator set, and how the weights are kept.
        metadata: Entries of `metadata_props`.
    """
    model = convert(step, options.opset)
    stored = _store_weights(model, options, step)
    helper.set_model_props(model, dict(sorted(metadata.items())))
    target = directory / ENTRY
    target.parent.mkdir(parents=True)
    if options.external_data:
        stored["external_bytes"] = move_weights(model, target)
    target.write_bytes(model.SerializeToString(deterministic=True))
    return Artefact(
        format="onnx",
        entry=ENTRY,
        opset=options.opset,
        details={
            "ir_version": model.ir_version,
            "nodes": len(model.graph.node),
            "tf2onnx_version": tf2onnx.__version__,
            "onnx_version": onnx.__version__,
            **half_details(step.portable, NOTE),
            **stored,
        },
    )


def _unfused_product(left: Any, right: Any) -> Any:
    """Multiply matrices by an operation that tf2onnx does not fuse with a scaled addend.

    Its fusion takes any constant for the scalar that Gemm wants, and makes an invalid graph.
    """
    return tf.raw_ops.BatchMatMulV2(x=left, y=right)


def _store_weights(model: onnx.ModelProto, options: OnnxOptions, step: Step) -> dict[str, Any]:
    """Make the weights smaller as asked, and return what the manifest has to say about it."""
    if options.int8_min_weights is None and options.weights == "float32":
        return {}
    stored: dict[str, Any] = {}
    if options.int8_min_weights is not None:
        stored["int8_layers"] = quantize_layers(model, options.int8_min_weights)
    if options.weights == "float16":
        stored["float16_tensors"] = store_as_float16(model)
    _check(model)
    bounds = {"int8_layers": INT8_BOUND, "float16_tensors": FLOAT16_BOUND}
    reached = [bound for key, bound in bounds.items() if stored.get(key)]
    own = half_details(step.portable, NOTE).get("parity_bound", 0.0)
    if reached:
        stored["parity_bound"] = max(own, *reached)
    return stored


def _plainly_named(signature: list[tf.TensorSpec]) -> list[tf.TensorSpec]:
    # Placeholders with names that no other tensor of the graph can have.
    return [
        tf.TensorSpec(spec.shape, spec.dtype, name=f"input_{index}")
        for index, spec in enumerate(signature)
    ]


def _with_port_names(model: onnx.ModelProto, step: Step) -> onnx.ModelProto:
    """Rename inputs and outputs to the ports', and state their shapes."""
    graph = model.graph
    order = {value.name: index for index, value in enumerate(graph.input)}
    by_position = [f"input_{index}" for index in range(len(step.inputs))]
    missing = [name for name in by_position if name not in order]
    if missing:
        raise ExportError(f"tf2onnx dropped the inputs {missing}; this is a fault of the exporter")
    new_names = {old: port.name for old, port in zip(by_position, step.inputs, strict=True)}
    new_names |= {
        value.name: name for value, name in zip(graph.output, step.output_names, strict=True)
    }
    _rename(graph, new_names)
    del graph.value_info[:]
    del graph.input[:]
    graph.input.extend(_value_info(port.name, port, step.batch_size) for port in step.inputs)
    del graph.output[:]
    graph.output.extend(
        _value_info(name, port, step.batch_size)
        for name, port in zip(step.output_names, step.output_ports, strict=True)
    )
    graph.name = "policy"
    graph.doc_string = ""
    model.producer_name = "nnx-ppo-deploy"
    kept = [entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def _rename(graph: onnx.GraphProto, new_names: Mapping[str, str]) -> None:
    """Rename tensors, also in the bodies of loops and branches, which see those outside."""
    taken = set(new_names.values())
    for node in graph.node:
        node.input[:] = [new_names.get(name, _free(name, taken)) for name in node.input]
        node.output[:] = [new_names.get(name, _free(name, taken)) for name in node.output]
        for body in bodies_of(node):
            _rename(body, new_names)
            for value in [*body.input, *body.output, *body.value_info]:
                value.name = new_names.get(value.name, _free(value.name, taken))
    for initializer in graph.initializer:
        # An output that is constant in a step of fixed batch has no node, only a value.
        initializer.name = new_names.get(initializer.name, _free(initializer.name, taken))


def _free(name: str, taken: set[str]) -> str:
    return f"{name}_inner" if name in taken else name


def _value_info(name: str, port: Any, batch_size: int | None) -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(_numpy_dtype(port.dtype))
    return helper.make_tensor_value_info(
        name, dtype, [BATCH if batch_size is None else batch_size, *port.shape]
    )


def _numpy_dtype(name: str) -> Any:
    return tf.as_dtype(name).as_numpy_dtype().dtype


def _check(model: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise ExportError(f"the ONNX model does not pass ONNX's own full check: {error}") from error
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise ExportError(f"node {node.name} ({node.op_type}) is outside the standard domain")
        if node.op_type.startswith("Random"):
            raise ExportError(f"node {node.name} ({node.op_type}) draws random numbers")
    _check_loads(model)


def _check_loads(model: onnx.ModelProto) -> None:
    """Refuse what is valid ONNX but has no kernel, such as Erf of float64."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise ExportError(
            f"ONNX Runtime {onnxruntime.__version__} cannot run the model: {error}. Compute that "
            "in float32 or int32, or export only: stablehlo, saved_model"
        ) from error
