"""What a network is made of, written at export so that people can look at it without JAX.

`structure.json` is listed in the manifest and hashed like every other file. No runtime needs it: a
bundle without it acts all the same. `parse_structure` refuses, in this order: a file above
`MAX_STRUCTURE_BYTES`, what is not JSON of these types, and modules, populations or edges that do
not belong to each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from serving.errors import BundleError

STRUCTURE_FILE = "structure.json"
STRUCTURE_VERSION = 1
MAX_STRUCTURE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64

Setting = str | int | float | bool


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array of a module, or one leaf of it."""

    name: str
    kind: str
    """Class of the Variable: `Param`, `NormalizerStatistics`, ..."""
    shape: list[int]
    dtype: str
    trained: bool
    """Whether it is a parameter, not a statistic or another kind of state."""


class Module(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One module of the network."""

    path: str
    """Attributes and keys that lead to it, joined by dots; empty for the network itself."""
    name: str
    """The path from the module that it belongs to."""
    depth: int
    """How many modules it is in."""
    type: str
    """Name of its class."""
    class_path: str
    """`package.module:Class`; information for people, never imported."""
    settings: dict[str, Setting] = {}
    """Its plain attributes, such as sizes and the name of an activation."""
    variables: list[Variable] = []
    """Its own arrays, without those of modules in it."""
    parameters: int = 0
    """Trained numbers, those of modules in it included."""
    operations: int = 0
    """Operations of the exported step that come from it, those of modules in it included; 0 where
    nothing of it is left, because the action does not need it or it was computed at export."""


class Population(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node of a population graph."""

    name: str
    size: int
    activation: str | None = None
    input_from: str | None = None
    """Key of the graph's input that it reads."""
    output_to: str | None = None
    """Key of the graph's output under which it appears."""
    remembers_steps: int = 0
    """For how many steps its past is kept."""


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An edge of a population graph."""

    source: str
    target: str
    delay_steps: int
    transform: str
    """Class of the module on the edge."""
    parameters: int


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A population graph."""

    path: str
    populations: list[Population]
    connections: list[Connection]


class FlowNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A box of the step's data flow: a port, or a module with the operations it gave the step."""

    role: Literal["observation", "module", "action", "extra output"]
    label: str
    path: str
    """Port name, or the module's path."""
    type: str = ""
    """The module's class, or the port's dtype."""
    elements: int = 0
    """Elements of a port in one row; parameters of a module."""
    operations: int = 0


class FlowEdge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values that go from one box to another, in the same step or, as carry, to the next."""

    source: int
    target: int
    elements: int
    """Elements in one row."""
    carry: list[str] = []
    """Carry ports that hold them until the next step; empty within a step."""


class Normalizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A module that normalizes observations inside the exported step."""

    path: str
    samples: float
    """Observations that its statistics come from."""


class Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that `structure.json` says."""

    structure_version: int = STRUCTURE_VERSION
    modules: list[Module]
    """The network first, then depth first; a module's parent is the last one before it that is
    one less deep."""
    graphs: list[Graph] = []
    flow_nodes: list[FlowNode] = []
    flow_edges: list[FlowEdge] = []
    normalizers: list[Normalizer] = []
    operations: dict[str, dict[str, int]] = {}
    """Artefact → operation type → how many of it."""


def encode_structure(structure: Structure, file: str | Path = STRUCTURE_FILE) -> bytes:
    """Writes a structure as indented JSON and checks it by reading it.

    Raises:
        BundleError: if it would be refused when read.
    """
    data = msgspec.json.format(msgspec.json.encode(structure), indent=1) + b"\n"
    parse_structure(data, file)
    return data


def parse_structure(data: bytes, file: str | Path = STRUCTURE_FILE) -> Structure:
    """Reads a structure and checks all of it.

    Raises:
        BundleError: naming the file and the first reason found.
    """
    if len(data) > MAX_STRUCTURE_BYTES:
        raise BundleError(file, f"larger than the limit of {MAX_STRUCTURE_BYTES} bytes")
    try:
        structure = msgspec.json.decode(data, type=Structure)
        _check(structure)
    except (ValueError, RecursionError) as error:
        raise BundleError(
            file, f"does not describe a network: {error}; export the policy again"
        ) from error
    return structure


def _check(structure: Structure) -> None:
    if structure.structure_version != STRUCTURE_VERSION:
        raise ValueError(
            f"structure version {structure.structure_version}, expected {STRUCTURE_VERSION}"
        )
    depth = -1
    for module in structure.modules:
        if not 0 <= module.depth <= min(depth + 1, MAX_DEPTH) or (module.depth == 0) != (depth < 0):
            raise ValueError(f"module {module.path[:80]!r} of depth {module.depth} has no parent")
        depth = module.depth
    if not structure.modules:
        raise ValueError("no modules")
    for graph in structure.graphs:
        names = [population.name for population in graph.populations]
        if len(set(names)) != len(names):
            raise ValueError(f"graph {graph.path[:80]!r} has two populations of one name")
        for edge in graph.connections:
            if {edge.source, edge.target} - set(names) or edge.delay_steps < 0:
                raise ValueError(
                    f"connection {edge.source[:80]!r} -> {edge.target[:80]!r} with delay "
                    f"{edge.delay_steps} is not one of graph {graph.path[:80]!r}"
                )
    count = len(structure.flow_nodes)
    for edge in structure.flow_edges:
        if not (0 <= edge.source < count and 0 <= edge.target < count):
            raise ValueError(f"an edge from box {edge.source} to box {edge.target} of {count}")
