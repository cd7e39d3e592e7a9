"""Describe a network's modules and population graphs for people, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import jax
import numpy as np
from flax import nnx

from export.module_scopes import module_path_of
from export.passes.rewrite import sub_jaxprs
from export.prng_keys import without_key_type
from export.structure import leaf_dtype
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.normalizer import Normalizer
from serving import structure as recorded

MAX_SETTINGS = 24
"""Attributes recorded of one module; a class with more has other things in mind than settings."""

_CONTAINERS = (nnx.List, nnx.Dict)


@dataclasses.dataclass(frozen=True)
class Operations:
    """How many operations of the exported step come from which module."""

    own: Counter[str]
    """Module path → operations of the module itself."""

    def within(self, path: str) -> int:
        """Return the operations of a module and of those in it."""
        if not path:
            return sum(self.own.values())
        prefix = f"{path}."
        return sum(n for key, n in self.own.items() if key == path or key.startswith(prefix))


def count_operations(jaxpr: Any) -> Operations:
    """Count a jaxpr's operations by the module that they come from, those in loops included."""
    own: Counter[str] = Counter()

    def visit(part: Any) -> None:
        for equation in part.eqns:
            own[module_path_of(equation)] += 1
            for inner in sub_jaxprs(equation):
                visit(getattr(inner, "jaxpr", inner))

    visit(jaxpr)
    return Operations(own)


def describe_modules(network: nnx.Module, operations: Operations) -> list[recorded.Module]:
    """Describe every module, the network first, then depth first.

    Containers that only group modules (`nnx.List`, `nnx.Dict`) are left out; what they hold is
    named by the path through them.
    """
    found = dict(nnx.iter_modules(network))
    kept = {path: m for path, m in found.items() if not isinstance(m, _CONTAINERS) or not path}
    variables = {path: _variables(module) for path, module in found.items()}
    trained: Counter[tuple[Any, ...]] = Counter()
    for path, own in variables.items():
        size = sum(math.prod(variable.shape) for variable in own if variable.trained)
        trained.update({path[:n]: size for n in range(len(path) + 1)})
    described = []
    for path in sorted(kept, key=_natural):
        parents = [path[:n] for n in range(len(path)) if path[:n] in kept]
        if len(parents) > recorded.MAX_DEPTH:
            continue
        module, text = kept[path], dotted(path)
        described.append(
            recorded.Module(
                path=text,
                name=dotted(path[len(parents[-1]) :] if parents else path) or "network",
                depth=len(parents),
                type=type(module).__name__,
                class_path=f"{type(module).__module__}:{type(module).__qualname__}",
                settings=_settings(module),
                variables=variables[path],
                parameters=trained[path],
                operations=operations.within(text),
            )
        )
    return described


def dotted(path: tuple[Any, ...]) -> str:
    """Return a module's path as text."""
    return ".".join(str(part) for part in path)


def _natural(path: tuple[Any, ...]) -> list[tuple[int, int, str]]:
    """Order layers by number and everything else by name."""
    return [(0, part, "") if isinstance(part, int) else (1, 0, str(part)) for part in path]


def _settings(module: nnx.Module) -> dict[str, recorded.Setting]:
    """Return the public attributes that are plain values, and activations by their name."""
    settings: dict[str, recorded.Setting] = {}
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or len(settings) == MAX_SETTINGS:
            continue
        if isinstance(value, bool | int | str):
            settings[name] = value
        elif isinstance(value, float):
            settings[name] = value if math.isfinite(value) else str(value)
        elif "activation" in name and callable(value):
            settings[name] = function_name(value)
        elif _is_plain_tuple(value):
            settings[name] = repr(value)
    return settings


def _is_plain_tuple(value: Any) -> bool:
    plain = isinstance(value, tuple) and 0 < len(value) <= 8
    return plain and all(isinstance(item, bool | int | float | str) for item in value)


def function_name(function: Any) -> str:
    """Return a function's name without an address, so that two exports say the same."""
    inner = getattr(function, "func", getattr(function, "__wrapped__", function))
    return str(getattr(inner, "__name__", type(inner).__name__))


def _variables(module: nnx.Module) -> list[recorded.Variable]:
    described = []
    for name, value in sorted(vars(module).items()):
        if not isinstance(value, nnx.Variable):
            continue
        leaves, _ = jax.tree_util.tree_flatten_with_path(value.get_value())
        for path, leaf in leaves:
            array = without_key_type(leaf)
            described.append(
                recorded.Variable(
                    name=name + jax.tree_util.keystr(path),
                    kind=type(value).__name__,
                    shape=[int(n) for n in np.shape(array)],
                    dtype=str(leaf_dtype(array)),
                    trained=isinstance(value, nnx.Param),
                )
            )
    return described


def describe_graphs(network: nnx.Module) -> list[recorded.Graph]:
    """Describe every population graph in the network."""
    return [
        _graph(dotted(path), module)
        for path, module in sorted(nnx.iter_modules(network), key=lambda item: _natural(item[0]))
        if isinstance(module, PopulationGraph)
    ]


def _graph(path: str, graph: PopulationGraph) -> recorded.Graph:
    populations = [graph.populations[name] for name in graph._names]
    return recorded.Graph(
        path=path,
        populations=[
            recorded.Population(
                name=population.name,
                size=population.size,
                activation=None
                if population.activation is None
                else function_name(population.activation),
                input_from=population.input_from,
                output_to=population.output_to,
                remembers_steps=population.max_outgoing_delay,
            )
            for population in populations
        ],
        connections=[
            recorded.Connection(
                source=edge.src,
                target=edge.dst,
                delay_steps=edge.delay,
                transform=type(edge.transform).__name__,
                parameters=_parameters(edge.transform),
            )
            for edge in graph.connections
        ],
    )


def _parameters(module: nnx.Module) -> int:
    leaves = jax.tree.leaves(nnx.state(module, nnx.Param))
    return sum(math.prod(np.shape(leaf)) for leaf in leaves)


def describe_normalizers(network: nnx.Module, operations: Operations) -> list[recorded.Normalizer]:
    """Describe the normalizers that are part of the exported step."""
    return [
        recorded.Normalizer(path=dotted(path), samples=float(module.counter.get_value()))
        for path, module in sorted(nnx.iter_modules(network), key=lambda item: _natural(item[0]))
        if isinstance(module, Normalizer) and operations.within(dotted(path))
    ]
