"""Make an ONNX model the same whenever the same step is converted.

tf2onnx numbers names throughout a process, and what it keeps in sets comes out in an order that
depends on the hash seed. Here order and names follow from the graph alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx
from onnx import numpy_helper

from export.formats.onnx_cleanup import bodies_of


def make_canonical(model: onnx.ModelProto) -> None:
    """Order nodes, initializers and attributes, and name all but inputs and outputs anew.

    Nodes stand in the order in which the outputs need them. Initializers of equal content become
    one, and what no output needs goes.

    Args:
        model: Changed in place; the names of its inputs and outputs stay.
    """
    graph = model.graph
    _put_in_order(graph)
    _Names({value.name for value in [*graph.input, *graph.output]}).rename(graph, {}, top=True)


def _put_in_order(graph: onnx.GraphProto) -> list[str]:
    """Order the nodes, also those of bodies; returns the names that are read from outside."""
    nodes = list(graph.node)
    reads: list[list[str]] = []
    for node in nodes:
        from_bodies = [name for body in bodies_of(node) for name in _put_in_order(body)]
        reads.append([name for name in (*node.input, *from_bodies) if name])
    producers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    order = _needed_by([value.name for value in graph.output], producers, reads)
    own = {*producers, *(v.name for v in graph.input), *(i.name for i in graph.initializer)}
    outside = [name for index in order for name in reads[index] if name not in own]
    outside += [value.name for value in graph.output if value.name not in own]
    kept = [onnx.NodeProto.FromString(nodes[index].SerializeToString()) for index in order]
    del graph.node[:]
    graph.node.extend(kept)
    return list(dict.fromkeys(outside))


def _needed_by(
    outputs: Iterable[str], producers: dict[str, int], reads: list[list[str]]
) -> list[int]:
    """Return the nodes that outputs need, each after those that it reads."""
    order: list[int] = []
    placed: set[int] = set()
    # Not recursive: a network may be deeper than Python's stack.
    pending = [(producers[name], False) for name in reversed(list(outputs)) if name in producers]
    while pending:
        index, reads_are_placed = pending.pop()
        if index in placed:
            continue
        if reads_are_placed:
            placed.add(index)
            order.append(index)
            continue
        pending.append((index, True))
        needed = [producers[name] for name in reversed(reads[index]) if name in producers]
        pending += [(before, False) for before in needed if before not in placed]
    return order


class _Names:
    """Hands out names, each once.

    Args:
        kept: Names of the whole model's inputs and outputs.
    """

    def __init__(self, kept: set[str]):
        self._kept = kept
        self._used: dict[str, int] = {}
        self._sizes: dict[str, str] = {}

    def rename(self, graph: onnx.GraphProto, outside: dict[str, str], *, top: bool = False) -> None:
        """Rename everything in `graph`, which is in order already, and in its bodies.

        Args:
            graph: Changed in place.
            outside: Old name to new, of what a body may read from outside.
            top: Whether this is the whole model's graph, whose inputs and outputs keep their names.
        """
        names = dict(outside)

        def define(name: str, kind: str) -> str:
            names[name] = name if top and name in self._kept else self._new(kind)
            return names[name]

        del graph.value_info[:]
        for value in graph.input:
            define(value.name, "input")
        _rename_initializers(graph, names, define, self._kept if top else set())
        for node in graph.node:
            node.input[:] = [names[name] if name else "" for name in node.input]
            for body in bodies_of(node):
                self.rename(body, names)
            node.output[:] = [define(name, node.op_type) if name else "" for name in node.output]
            node.name = next(name for name in node.output if name)
            node.doc_string = ""
            attributes = sorted(node.attribute, key=lambda attribute: attribute.name)
            copies = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in attributes]
            del node.attribute[:]
            node.attribute.extend(copies)
        for value in [*graph.input, *graph.output]:
            value.name = names[value.name]
            if not top:
                self._rename_sizes(value)
        if not top:
            graph.name, graph.doc_string = self._new("body"), ""

    def _rename_sizes(self, value: onnx.ValueInfoProto) -> None:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                known = self._sizes.setdefault(size.dim_param, f"size_{len(self._sizes)}")
                size.dim_param = known

    def _new(self, kind: str) -> str:
        """Return `kind` with its next number."""
        number = self._used.get(kind, 0)
        self._used[kind] = number + 1
        name = f"{kind}_{number}"
        return self._new(kind) if name in self._kept else name


def _rename_initializers(
    graph: onnx.GraphProto,
    names: dict[str, str],
    define: Callable[[str, str], str],
    ports: set[str],
) -> None:
    """Keep each content once, in the order of first use; what is a port itself stays on its own."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    new_names: dict[Any, str] = {}
    kept: list[onnx.TensorProto] = []
    for name in dict.fromkeys(_read_in_order(graph)):
        if name not in tensors:
            continue
        tensor = tensors[name]
        array = numpy_helper.to_array(tensor)
        content = (tensor.data_type, array.shape, array.tobytes())
        if content in new_names and name not in ports:
            names[name] = new_names[content]
            continue
        new_names[content] = define(name, "constant")
        copy = onnx.TensorProto.FromString(tensor.SerializeToString())
        copy.name, copy.doc_string = new_names[content], ""
        kept.append(copy)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _read_in_order(graph: onnx.GraphProto) -> Iterable[str]:
    """Yield the names that nodes, bodies and outputs read, in order."""
    for node in graph.node:
        yield from node.input
        for body in bodies_of(node):
            yield from _read_in_order(body)
    yield from (value.name for value in graph.output)
