"""A population graph as a table that fits a terminal: one row for each population."""

from __future__ import annotations

from serving.overview.sections import Table, printable
from serving.structure import Graph


def graph_table(graph: Graph) -> Table:
    """Returns populations with what they read; a delay in steps stands behind its source."""
    rows = []
    for population in graph.populations:
        reads = [] if population.input_from is None else [f"input {population.input_from}"]
        reads += [
            edge.source + (f" ({edge.delay_steps})" if edge.delay_steps else "")
            for edge in graph.connections
            if edge.target == population.name
        ]
        gives = "" if population.output_to is None else f"output {population.output_to}"
        rows.append(
            (
                printable(population.name),
                str(population.size),
                printable(population.activation or "linear"),
                printable(", ".join(reads)) or "nothing",
                printable(gives),
            )
        )
    headers = ("population", "units", "activation", "reads (delay in steps)", "gives")
    words = frozenset(["activation", "reads (delay in steps)", "gives"])
    return Table(f"Population graph {printable(graph.path or 'network')}", headers, rows, words)
