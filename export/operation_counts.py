"""Count the operations in each artefact by type, from the files that were written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from serving.manifest import Artefact

# At the start of a line or behind its results; elsewhere the word is an attribute or a file's name.
_STABLEHLO_OPERATION = re.compile(r"^\s*(?:%[^=]*= )?\"?((?:stablehlo|chlo)\.\w+)", re.MULTILINE)
_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
# They hand values over and compute nothing.
_PLUMBING = _CALLS | {"Placeholder", "NoOp"}


def count_operations_of_artefacts(
    directory: Path, artefacts: Mapping[str, Artefact]
) -> dict[str, dict[str, int]]:
    """Return artefact → operation type → count, most frequent first.

    Args:
        directory: The bundle under construction.
        artefacts: What has been written there.
    """
    counters = {
        "c": _c,
        "litert": _litert,
        "onnx": _onnx,
        "saved_model": _saved_model,
        "stablehlo": _stablehlo,
    }
    return {
        key: _ordered(counters[artefact.format](directory / artefact.entry))
        for key, artefact in artefacts.items()
    }


def _ordered(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _onnx(file: Path) -> Counter[str]:
    import onnx

    counts: Counter[str] = Counter()

    def visit(nodes: Iterable[Any]) -> None:
        for node in nodes:
            counts[node.op_type] += 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    visit(graph.node)

    visit(onnx.load(str(file), load_external_data=False).graph.node)
    return counts


def _c(file: Path) -> Counter[str]:
    """Count the functions that were generated, each of which says what it computes."""
    text = (file.parent / "policy_network.h").read_text(encoding="ascii")
    return Counter(re.findall(r"^ \* OpType: (\w+)$", text, re.MULTILINE))


def _litert(file: Path) -> Counter[str]:
    from tensorflow.lite.tools import flatbuffer_utils

    model: Any = flatbuffer_utils.read_model(str(file))
    return Counter(
        str(flatbuffer_utils.opcode_to_name(model, operator.opcodeIndex))
        for graph in model.subgraphs
        for operator in graph.operators
    )


def _stablehlo(file: Path) -> Counter[str]:
    from jax import export

    text = export.deserialize(bytearray(file.read_bytes())).mlir_module()
    return Counter(_STABLEHLO_OPERATION.findall(text))


def _saved_model(directory: Path) -> Counter[str]:
    """Count what the serving signature reaches, calls followed and not counted themselves."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    functions = {function.signature.name: function for function in graph.library.function}
    counts: Counter[str] = Counter()

    def visit(name: str) -> None:
        for node in functions[name].node_def:
            if node.op not in _PLUMBING:
                counts[node.op] += 1
            for attribute in node.attr.values():
                for called in (attribute.func, *attribute.list.func):
                    if called.name in functions:
                        visit(called.name)

    # Saving and restoring are calls too, but of operations, not of functions.
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    outputs = {info.name.split(":")[0] for info in signature.outputs.values()}
    for node in graph.node:
        if node.name in outputs and node.op in _CALLS:
            visit(node.attr["f"].func.name)
    return counts
