"""Put a bundle's report together. Everything comes from the bundle: no network, no JAX."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import importlib.resources
import json
from pathlib import Path
from typing import Any

from export.errors import MissingExtraError
from export.parity_report import ParityReport
from serving.bundle import RESET, Bundle
from serving.files import write_atomically
from serving.latency import LatencyRecord
from serving.overview import (
    Verdict,
    artefact_table,
    byte_size,
    carry_table,
    connection_table,
    file_table,
    joint_names,
    joint_table,
    key_facts,
    latency_table,
    metadata_facts,
    packed_table,
    parity_table,
    port_table,
    printable,
    provenance,
    session_notes,
    verdict_on,
)
from serving.overview.latency import recorded_latency
from serving.overview.verdict import judged
from serving.parity_record import PARITY_FILE, parse_parity
from serving.structure import Module, Structure

REPORT_FILE = "report.html"

LARGEST_DRAWING = 120
"""Populations or boxes beyond which a drawing would show nothing; the tables remain."""
LARGEST_MATRIX = 60


def write_report(
    bundle: Bundle, path: str | Path | None = None, *, parity: ParityReport | None = None
) -> Path:
    """Write a bundle's report: policy, graph, ports, parity, latency, sizes.

    What `nnx-ppo verify` and `nnx-ppo bench --write` left in the bundle is shown; what is not there
    is said to be missing.

    Args:
        bundle: A bundle that has been read.
        path: File to write, complete or not at all; default: `report.html` in the bundle.
        parity: What a comparison found; default: `parity.json` in the bundle.

    Returns:
        The file.

    Raises:
        MissingExtraError: The template library is not installed.
        OSError: The file cannot be written.
    """
    file = bundle.path / REPORT_FILE if path is None else Path(path)
    write_atomically(file, render_report(bundle, parity=parity).encode("utf-8"))
    return file


def check_templates() -> None:
    """Check that a report can be written here, before the work that it would report on.

    Raises:
        MissingExtraError: The template library is not installed.
    """
    try:
        importlib.import_module("jinja2")
    except ImportError as error:
        raise MissingExtraError(
            f"a report needs the package jinja2, which is not installed ({error}); run "
            '`pip install "nnx-ppo-deploy[export]"`'
        ) from error


def render_report(bundle: Bundle, *, parity: ParityReport | None = None) -> str:
    """Return the report as one HTML document that loads nothing; see `write_report`."""
    check_templates()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    script = _read("report.js")
    return environment.get_template("report.html.jinja").render(
        **_contents(bundle, _verdict(bundle, parity)),
        style=_read("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _read(name: str) -> str:
    """Return a file of this package's templates."""
    return (importlib.resources.files("export.report") / "templates" / name).read_text("utf-8")


def _verdict(bundle: Bundle, parity: ParityReport | None) -> Verdict:
    if parity is None:
        return verdict_on(bundle)
    return judged(bundle, parse_parity(json.dumps(parity.to_json()).encode(), PARITY_FILE))


def _contents(bundle: Bundle, verdict: Verdict) -> dict[str, Any]:
    latency, latency_problem = recorded_latency(bundle)
    structure = bundle.structure
    return {
        "name": printable(bundle.manifest.name),
        "verdict": verdict,
        "facts": key_facts(bundle),
        "notes": session_notes(bundle),
        "graphs": [] if structure is None else _graphs(structure),
        "flow": None if structure is None else _flow(structure),
        "modules": None if structure is None else _module_tree(structure),
        "ports": port_table(bundle),
        "carry": carry_table(bundle),
        "packed": packed_table(bundle),
        "joints": joint_table(bundle),
        "metadata": metadata_facts(bundle),
        "actions": _actions(bundle),
        "parity": _parity(bundle, verdict),
        "latency": _latency(bundle, verdict, latency),
        "latency_problem": latency_problem,
        "artefacts": artefact_table(bundle),
        "sizes": _sizes(bundle),
        "operations": {} if structure is None else _operations(structure),
        "files": file_table(bundle),
        "provenance": provenance(bundle),
    }


def _graphs(structure: Structure) -> list[dict[str, Any]]:
    from export.report.graph_drawing import delay_matrix, draw_graph

    drawn = []
    for number, graph in enumerate(structure.graphs):
        names = [printable(population.name) for population in graph.populations]
        small = len(names) <= LARGEST_DRAWING
        delays = sorted({edge.delay_steps for edge in graph.connections})
        drawn.append(
            {
                "path": printable(graph.path or "the network"),
                "populations": graph.populations,
                "drawing": draw_graph(graph, f"graph{number}") if small else None,
                "delays": delays,
                "names": names,
                "matrix": delay_matrix(graph) if 1 < len(names) <= LARGEST_MATRIX else None,
                "connections": connection_table(graph),
            }
        )
    return drawn


def _flow(structure: Structure) -> Any:
    from export.report.graph_drawing import draw_flow

    if not 1 < len(structure.flow_nodes) <= LARGEST_DRAWING:
        return None
    return draw_flow(structure.flow_nodes, structure.flow_edges, "flow")


@dataclasses.dataclass
class _Branch:
    """A module with those in it."""

    module: Module
    children: list[_Branch]

    @property
    def settings(self) -> str:
        values = self.module.settings
        return printable(", ".join(f"{key} {value}" for key, value in values.items()))

    @property
    def shown_open(self) -> bool:
        """Whether a reader sees what is in it at once: the way to where the weights are."""
        return self.module.operations > 0 and self.module.depth < 4 and len(self.children) <= 12


def _module_tree(structure: Structure) -> _Branch:
    path: list[_Branch] = []
    for module in structure.modules:
        branch = _Branch(module, [])
        del path[module.depth :]
        if path:
            path[-1].children.append(branch)
        path.append(branch)
    return path[0]


def _actions(bundle: Bundle) -> list[dict[str, Any]]:
    """Plot what the first robot of the golden trajectory did."""
    from export.report.plots import action_plot

    reset = bundle.golden[RESET][:, 0]
    joints = joint_names(bundle)
    plots = []
    for port in bundle.manifest.action_ports[:6]:
        values = bundle.golden[port.name][:, 0].reshape(len(reset), -1)
        name = printable(port.name)
        more = f", the first 8 of {values.shape[1]} numbers" if values.shape[1] > 8 else ""
        label = f"{name} over the {len(reset)} recorded steps of one robot{more}"
        names = joints.get(port.name, [str(index) for index in range(values.shape[1])])[:8]
        plot = action_plot(values, reset, label)
        plots.append({"name": name, "more": more, "plot": plot, "elements": names})
    return plots


def _parity(bundle: Bundle, verdict: Verdict) -> dict[str, Any] | None:
    from export.report.plots import error_plot

    parity = verdict.parity
    if parity is None:
        return None
    runtimes = list(dict.fromkeys(comparison.runtime for comparison in parity.comparisons))
    return {
        "table": parity_table(bundle, parity),
        "plots": [(printable(name), error_plot(parity, name)) for name in runtimes],
        "ports": [
            (comparison, max(comparison.ports, key=lambda port: port.max_abs_error))
            for comparison in parity.comparisons
        ],
    }


def _latency(
    bundle: Bundle, verdict: Verdict, latency: LatencyRecord | None
) -> dict[str, Any] | None:
    from export.report.plots import latency_plot, span_of

    shown = _histograms(verdict, latency)
    table = latency_table(bundle, verdict.parity, latency)
    if not table.rows:
        return None
    span = span_of([histogram for _, histogram, _, _ in shown])
    return {
        "table": table,
        "plots": [
            (name, latency_plot(histogram, median, p99, span, f"Times of a step, {name}"))
            for name, histogram, median, p99 in shown
        ],
        "machine": None
        if latency is None
        else printable(
            f"{latency.machine.get('processor', 'unknown')}, "
            f"{latency.machine.get('cores', '?')} cores"
        ),
        "rate_hz": None if latency is None else latency.rate_hz,
    }


def _histograms(verdict: Verdict, latency: LatencyRecord | None) -> list[tuple[str, Any, Any, Any]]:
    """Return name, histogram, median and 99th percentile in microseconds of what is plotted."""
    if latency is not None:
        return [
            (
                f"{printable(result.runtime)}, batch {result.batch_size}",
                result.histogram,
                result.median_s * 1e6,
                result.p99_s * 1e6,
            )
            for result in latency.results[:12]
        ]
    comparisons = [] if verdict.parity is None else verdict.parity.comparisons
    smallest = min((comparison.batch_size for comparison in comparisons), default=1)
    return [
        (
            f"{printable(c.runtime)}, batch {c.batch_size}",
            c.step_histogram,
            c.step_median_us,
            c.step_p99_us,
        )
        for c in comparisons
        if c.mode == "free_running" and c.batch_size == smallest and c.step_histogram is not None
    ]


def _sizes(bundle: Bundle) -> list[tuple[str, str, float]]:
    """Return artefact, size and share of the largest in percent."""
    sizes = {
        printable(key): sum(file.size for file in artefact.files)
        for key, artefact in bundle.manifest.artefacts.items()
    }
    largest = max(sizes.values(), default=0) or 1
    return [(key, byte_size(size), 100.0 * size / largest) for key, size in sizes.items()]


def _operations(structure: Structure) -> dict[str, list[tuple[str, int, float]]]:
    """Return for each artefact operation, count and share of the most frequent in percent."""
    return {
        printable(key): [
            (printable(operation), count, 100.0 * count / max(1, *counts.values()))
            for operation, count in counts.items()
        ]
        for key, counts in structure.operations.items()
        if counts
    }
