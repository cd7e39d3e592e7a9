"""Write down what an exported network is made of, for reports and for people on a robot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from export.data_flow import describe_flow
from export.module_tree import (
    count_operations,
    describe_graphs,
    describe_modules,
    describe_normalizers,
)
from export.operation_counts import count_operations_of_artefacts
from export.step import Step
from serving.manifest import Artefact
from serving.structure import Structure


def describe_structure(step: Step, directory: Path, artefacts: Mapping[str, Artefact]) -> Structure:
    """Describe the network behind `step`, and the artefacts made of it.

    Args:
        step: The exported step.
        directory: The bundle under construction, whose artefacts are written.
        artefacts: Their manifest entries.
    """
    network = step.reference.merge()
    operations = count_operations(step.closed.jaxpr)
    modules = describe_modules(network, operations)
    nodes, edges = describe_flow(step, network, modules)
    return Structure(
        modules=modules,
        graphs=describe_graphs(network),
        flow_nodes=nodes,
        flow_edges=edges,
        normalizers=describe_normalizers(network, operations),
        operations=count_operations_of_artefacts(directory, artefacts),
    )
