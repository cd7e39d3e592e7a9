"""The tables of an overview."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving import tree
from serving.action_values import ACTION_FIELDS, action_values
from serving.bundle import Bundle
from serving.errors import BundleError
from serving.latency import LatencyRecord
from serving.overview.facts import elements_of, initial_value
from serving.overview.sections import (
    Table,
    byte_size,
    duration,
    error_text,
    number_text,
    plural,
    printable,
    shape_text,
)
from serving.parity_record import Comparison, ParityRecord
from serving.structure import Graph, Structure
from serving.tensors import byte_count


def port_table(bundle: Bundle) -> Table:
    """Returns every input and output with its role, shape and dtype."""
    manifest = bundle.manifest
    roles: list[tuple[str, list[Any]]] = [
        ("observation", manifest.observation_ports),
        ("carry", list(manifest.carry_ports)),
        ("reset", [] if manifest.reset_port is None else [manifest.reset_port]),
        ("action", manifest.action_ports),
        ("extra output", manifest.extra_output_ports),
    ]
    rows = [
        (printable(port.name), role, shape_text(port.shape), port.dtype, f"{elements_of(port):,}")
        for role, ports in roles
        for port in ports
    ]
    headers = ("tensor", "role", "shape", "dtype", "numbers")
    return Table("Ports", headers, rows, frozenset(["role", "shape", "dtype"]))


def carry_table(bundle: Bundle) -> Table:
    """Returns what is kept between steps, how it is laid out and what a reset does to it."""
    rows = []
    for port in bundle.manifest.carry_ports:
        kind = "state"
        if port.kind == "packed_delays":
            held = [leaf for leaf in bundle.manifest.network_carry.leaves if leaf.port == port.name]
            kind = f"{plural(len(held), 'delay buffer')}, packed"
        if port.kind == "delay_buffer":
            kind = f"delay buffer, {plural(port.shape[0] if port.shape else 0, 'step')}"
        rows.append(
            (
                printable(port.name),
                kind,
                byte_size(byte_count([port])),
                "initial value" if port.reset == "initial" else "left alone",
                initial_value(bundle.initial_carry[port.name]),
                printable(port.next_name),
            )
        )
    headers = ("in", "kind", "size", "on reset", "initial", "out")
    return Table("Carry", headers, rows, frozenset(["out", "kind", "on reset"]))


def packed_table(bundle: Bundle) -> Table:
    """Returns where in a port of packed delays each buffer of the network lies."""
    carry = bundle.manifest.network_carry
    rows = [
        (
            printable(path),
            printable(leaf.port),
            plural(len(leaf.slots), "step"),
            str(leaf.shape[1:]),
            ", ".join(map(str, leaf.slots)),
        )
        for path, leaf in zip(tree.leaf_paths(carry.tree, "carry"), carry.leaves, strict=True)
        if leaf.slots is not None
    ]
    headers = ("buffer", "in", "delays", "value", "begins at, newest first")
    return Table("Packed delay buffers", headers, rows, frozenset(headers))


def joint_table(bundle: Bundle) -> Table:
    """Returns one row for each number of the action, with all that the metadata says about it.

    Fields that do not fit the action are left out here; `metadata_facts` shows them.
    """
    manifest = bundle.manifest
    ports = manifest.action_ports
    total = sum(elements_of(port) for port in ports)
    columns: dict[str, list[str]] = {}
    for title, field in (
        ("joint", "joint_names"),
        ("default position", "default_joint_positions"),
        ("stiffness", "joint_stiffness"),
        ("damping", "joint_damping"),
    ):
        values = _per_element(getattr(manifest.metadata, field), [port.name for port in ports])
        if values is not None and len(values) == total:
            columns[title] = [v if isinstance(v, str) else number_text(v) for v in values]
    for field in ACTION_FIELDS:
        try:
            arrays = action_values(manifest.metadata, field, ports)
        except BundleError:
            continue
        if arrays is not None:
            flat = np.concatenate([array.reshape(-1) for array in arrays])
            columns[field.removeprefix("action_").replace("_", " ")] = [
                number_text(float(value)) for value in flat
            ]
    if not columns:
        return Table("Action elements", (), [])
    elements = [
        f"{port.name}[{index}]" if elements_of(port) != 1 else port.name
        for port in ports
        for index in range(elements_of(port))
    ]
    rows = [tuple(map(printable, row)) for row in zip(elements, *columns.values(), strict=True)]
    headers = ("element", *columns)
    return Table("Action elements", headers, rows, frozenset(["joint"]))


def joint_names(bundle: Bundle) -> dict[str, list[str]]:
    """Returns the joint of each number of an action port, for ports where the metadata says so."""
    ports = bundle.manifest.action_ports
    names = _per_element(bundle.manifest.metadata.joint_names, [port.name for port in ports])
    sizes = [elements_of(port) for port in ports]
    if names is None or len(names) != sum(sizes):
        return {}
    remaining = iter(map(printable, names))
    return {
        port.name: [next(remaining) for _ in range(size)]
        for port, size in zip(ports, sizes, strict=True)
    }


def _per_element(value: Any, ports: list[str]) -> list[Any] | None:
    if isinstance(value, dict):
        return [item for port in ports for item in value.get(port, [])]
    return value


def parity_table(bundle: Bundle, parity: ParityRecord) -> Table:
    """Returns one row for each comparison with the network."""
    rows = []
    for comparison in parity.comparisons:
        worst = comparison.worst
        rows.append(
            (
                printable(comparison.runtime),
                "pass" if comparison.passed else f"FAIL, {plural(worst.violations, 'element')}",
                printable(comparison.mode).replace("_", " "),
                str(comparison.batch_size),
                error_text(worst.max_abs_error),
                _bound_text(comparison),
                error_text(worst.max_rel_error),
                f"{worst.max_ulp:,}",
                str(worst.worst_step),
                printable(worst.name),
            )
        )
    headers = (
        *("artefact", "verdict", "mode", "batch", "abs. error", "bound", "rel. error", "ULP"),
        *("step", "worst tensor"),
    )
    return Table("Parity", headers, rows, frozenset(["mode", "worst tensor", "verdict"]))


def _bound_text(comparison: Comparison) -> str:
    effect = comparison.worst.rounding_effect
    bound = error_text(comparison.tolerance)
    return f"{bound} + {error_text(effect)}" if effect else bound


def latency_table(
    bundle: Bundle, parity: ParityRecord | None, latency: LatencyRecord | None
) -> Table:
    """Returns times of a step as `nnx-ppo bench` measured them, or else those of the comparison."""
    rate = bundle.manifest.control_rate_hz
    columns = ["median", "99th percentile"]
    rows: list[tuple[str, int, int, list[float]]] = []
    if latency is not None:
        columns.append("longest")
        for result in latency.results:
            times = [result.median_s * 1e6, result.p99_s * 1e6, result.max_s * 1e6]
            rows.append((result.runtime, result.batch_size, result.steps, times))
    elif parity is not None:
        for comparison in parity.comparisons:
            if comparison.mode == "free_running":
                times = [comparison.step_median_us, comparison.step_p99_us]
                rows.append((comparison.runtime, comparison.batch_size, parity.steps, times))
    cells = []
    for name, batch, steps, times in rows:
        share = [] if rate is None else [f"{times[1] * rate / 1e4:.2g} %"]
        cells.append(
            (printable(name), str(batch), f"{steps:,}", *(duration(time) for time in times), *share)
        )
    if rate is not None:
        columns.append("of the period (99th)")
    headers = ("artefact", "batch", "steps", *columns)
    return Table("Time per step", headers, cells)


def artefact_table(bundle: Bundle) -> Table:
    """Returns each artefact with its size, operations and what it needs."""
    operations = bundle.structure.operations if bundle.structure is not None else {}
    rows = []
    for key, artefact in bundle.manifest.artefacts.items():
        details = dict(artefact.details)
        if artefact.opset is not None:
            details = {"opset": artefact.opset, **details}
        counts = operations.get(key)
        rows.append(
            (
                printable(key),
                byte_size(sum(file.size for file in artefact.files)),
                "" if counts is None else f"{sum(counts.values()):,}",
                printable(artefact.entry),
                ", ".join(
                    f"{printable(k).replace('_', ' ')} {printable(v)}" for k, v in details.items()
                ),
            )
        )
    headers = ("artefact", "size", "operations", "loaded from", "details")
    return Table("Artefacts", headers, rows, frozenset(["loaded from", "details"]))


def file_table(bundle: Bundle) -> Table:
    """Returns every file that the manifest lists."""
    manifest = bundle.manifest
    files = [*manifest.files, *(f for a in manifest.artefacts.values() for f in a.files)]
    rows = [(printable(file.path), byte_size(file.size), file.sha256) for file in files]
    return Table("Files", ("file", "size", "SHA-256"), rows, frozenset(["SHA-256"]))


def operation_table(structure: Structure) -> Table:
    """Returns how many operations of which type each artefact has, most frequent first."""
    rows = [
        (printable(key), printable(operation), f"{count:,}")
        for key, counts in structure.operations.items()
        for operation, count in counts.items()
    ]
    return Table("Operations", ("artefact", "operation", "count"), rows, frozenset(["operation"]))


def module_table(structure: Structure) -> Table:
    """Returns the tree of modules, indented, with weights and what is left of each in the step."""
    rows = []
    for module in structure.modules:
        settings = ", ".join(f"{key}={value}" for key, value in module.settings.items())
        rows.append(
            (
                "  " * module.depth + printable(module.name),
                printable(module.type),
                printable(settings),
                f"{module.parameters:,}",
                f"{module.operations:,}",
            )
        )
    headers = ("module", "class", "settings", "parameters", "operations")
    return Table("Modules", headers, rows, frozenset(["class", "settings"]))


def connection_table(graph: Graph) -> Table:
    """Returns the connections of a population graph."""
    sizes = {population.name: population.size for population in graph.populations}
    rows = [
        (
            printable(edge.source),
            printable(edge.target),
            f"{sizes[edge.source]} → {sizes[edge.target]}",
            plural(edge.delay_steps, "step") if edge.delay_steps else "none",
            printable(edge.transform),
            f"{edge.parameters:,}",
        )
        for edge in graph.connections
    ]
    headers = ("from", "to", "units", "delay", "transform", "parameters")
    words = frozenset(["to", "units", "delay", "transform"])
    return Table(f"Connections of {printable(graph.path or 'the network')}", headers, rows, words)
