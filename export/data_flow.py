"""Which module hands what to which, read off the exported step itself.

Every operation of a jaxpr knows its module. Modules become boxes, the values between them edges;
what leaves as next carry and comes back as carry becomes an edge into the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx

from export.module_scopes import ROOT, module_path_of
from export.module_tree import dotted
from export.passes.rewrite import is_var
from export.step import Step
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.types import StatefulModule
from serving.structure import FlowEdge, FlowNode, Module

MAX_PORTS = 16
"""More observation tensors than this share one box."""


def describe_flow(
    step: Step, network: nnx.Module, modules: list[Module]
) -> tuple[list[FlowNode], list[FlowEdge]]:
    """Return boxes and edges of a step.

    Args:
        step: The exported step.
        network: The network that it was traced from.
        modules: Its modules, see `export.module_tree.describe_modules`.
    """
    by_path = {module.path: module for module in modules}
    shown = _boxes_of(network, by_path)
    if len({shown(module_path_of(equation)) for equation in step.unpacked.jaxpr.eqns}) < 2:
        # One stateful module around everything would say nothing: show the layers in it.
        shown = _nearest(set(by_path))
    return _Flow(step, by_path, shown).describe()


def _boxes_of(network: nnx.Module, by_path: dict[str, Module]) -> Callable[[str], str]:
    """Return a function from a module's path to that of the box it belongs to.

    A box is the innermost stateful module, except that a population graph is one box: it has a
    drawing of its own.
    """
    stateful, graphs = set(), []
    for path, module in nnx.iter_modules(network):
        if isinstance(module, StatefulModule):
            stateful.add(dotted(path))
        if isinstance(module, PopulationGraph):
            graphs.append(dotted(path))
    inside = {path for path in stateful if any(path.startswith(f"{g}.") for g in graphs)}
    return _nearest((stateful - inside) & set(by_path) | {""})


def _nearest(paths: set[str]) -> Callable[[str], str]:
    """Return a function from a path to the longest of `paths` that leads to it."""

    def nearest(path: str) -> str:
        if path == ROOT and ROOT not in paths:
            return ""
        while path and path not in paths:
            path = path.rpartition(".")[0]
        return path

    return nearest


class _Flow:
    """Boxes and edges while they are collected."""

    def __init__(self, step: Step, by_path: dict[str, Module], shown: Callable[[str], str]) -> None:
        self.step = step
        self.by_path = by_path
        self.shown = shown
        self.nodes: list[FlowNode] = []
        self.boxes: dict[str, int] = {}
        self.operations: dict[int, int] = {}
        self.elements: dict[tuple[int, int], dict[Any, int]] = {}
        self.carried: dict[tuple[int, int], dict[str, int]] = {}

    def describe(self) -> tuple[list[FlowNode], list[FlowEdge]]:
        # Packed delay buffers would be one value that every module hands to every other.
        jaxpr, step = self.step.unpacked.jaxpr, self.step
        carries = jaxpr.invars[: len(step.unpacked_carry)]
        observed = jaxpr.invars[len(step.unpacked_carry) :]
        made_by: dict[Any, int] = {}
        for variable, index in zip(
            observed, self._ports("observation", step.observation_ports), strict=True
        ):
            made_by[variable] = index
        readers: dict[Any, list[int]] = {variable: [] for variable in carries}
        for equation in jaxpr.eqns:
            box = self._box(self.shown(module_path_of(equation)))
            self.operations[box] = self.operations.get(box, 0) + 1
            for atom in equation.invars:
                if is_var(atom) and atom in readers:
                    readers[atom].append(box)
                elif is_var(atom) and atom in made_by:
                    self._connect(made_by[atom], box, atom)
            made_by.update(dict.fromkeys(equation.outvars, box))
        n_actions, n_carries = len(step.action_ports), len(carries)
        outputs = jaxpr.outvars
        results = [
            *zip(outputs, self._ports("action", step.action_ports), strict=False),
            *zip(
                outputs[n_actions + n_carries :],
                self._ports("extra output", step.extra_output_ports),
                strict=True,
            ),
        ]
        for atom, index in results:
            if is_var(atom) and atom in made_by:
                self._connect(made_by[atom], index, atom)
            elif is_var(atom) and atom in readers:
                readers[atom].append(index)
        for port, variable, atom in zip(
            step.unpacked_carry, carries, outputs[n_actions : n_actions + n_carries], strict=True
        ):
            source = made_by.get(atom) if is_var(atom) else None
            for reader in dict.fromkeys(readers[variable]):
                key = (reader if source is None else source, reader)
                held = self.carried.setdefault(key, {})
                held[port] = held.get(port, 0) + _elements(variable)
        return self._finished(), self._edges()

    def _ports(self, role: Any, ports: list[Any]) -> list[int]:
        """Add the boxes of ports and return one index for each port."""
        if not ports:
            return []
        if len(ports) > MAX_PORTS:
            total = sum(_product(port.shape) for port in ports)
            label = f"{len(ports)} {role} tensors"
            self.nodes.append(FlowNode(role=role, label=label, path="", elements=total))
            return [len(self.nodes) - 1] * len(ports)
        for port in ports:
            self.nodes.append(
                FlowNode(
                    role=role,
                    label=port.name,
                    path=port.name,
                    type=port.dtype,
                    elements=_product(port.shape),
                )
            )
        return list(range(len(self.nodes) - len(ports), len(self.nodes)))

    def _box(self, path: str) -> int:
        if path not in self.boxes:
            module = self.by_path[path]
            self.boxes[path] = len(self.nodes)
            self.nodes.append(
                FlowNode(
                    role="module",
                    label=module.name,
                    path=path,
                    type=module.type,
                    elements=module.parameters,
                )
            )
        return self.boxes[path]

    def _connect(self, source: int, target: int, variable: Any) -> None:
        if source != target:
            self.elements.setdefault((source, target), {})[variable] = _elements(variable)

    def _finished(self) -> list[FlowNode]:
        return [
            FlowNode(
                role=node.role,
                label=node.label,
                path=node.path,
                type=node.type,
                elements=node.elements,
                operations=self.operations.get(index, 0),
            )
            for index, node in enumerate(self.nodes)
        ]

    def _edges(self) -> list[FlowEdge]:
        within = [
            FlowEdge(source=source, target=target, elements=sum(values.values()))
            for (source, target), values in self.elements.items()
        ]
        across = [
            FlowEdge(
                source=source, target=target, elements=sum(ports.values()), carry=sorted(ports)
            )
            for (source, target), ports in self.carried.items()
        ]
        return [*within, *across]


def _elements(variable: Any) -> int:
    """Return the elements of a batched value in one row."""
    return _product(variable.aval.shape[1:])


def _product(shape: Any) -> int:
    product = 1
    for size in shape:
        # A symbolic size other than the leading one counts as one.
        product *= size if isinstance(size, int) else 1
    return product
