"""Say what a bundle holds: whether it is proven, what a robot has to do, what it is made of.

Every file is checked against the manifest first. `nnx-ppo report` shows the same as a page.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.display import Section, show
from nnx_ppo.cli.output import Output

if TYPE_CHECKING:
    from serving import Bundle
    from serving.overview import Table

EXAMPLES = """examples:
  nnx-ppo inspect policy/
  nnx-ppo inspect policy/ --full | less
  nnx-ppo inspect policy/ --json | jq .ports
"""

LONGEST_TABLE = 30
"""Rows of the modules' table that are shown without --full."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"all modules [the first {LONGEST_TABLE}], operations by type, and files with hashes",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import read_bundle

    bundle = read_bundle(arguments.bundle)
    show(output, describe(bundle), sections(bundle, full=arguments.full))
    return 0


def sections(bundle: "Bundle", *, full: bool = False) -> list[Section]:
    """Collect what a person wants to know about a bundle, the most urgent first.

    Args:
        bundle: A bundle, whose files have been checked.
        full: Whether long tables are shown whole, and the longest at all.
    """
    from serving import overview
    from serving.overview.latency import recorded_latency

    verdict = overview.verdict_on(bundle)
    latency, problem = recorded_latency(bundle)
    title = overview.Facts(
        overview.printable(bundle.manifest.name),
        [("directory", f"{bundle.path}: every file is as the manifest says")],
    )
    facts = overview.key_facts(bundle)
    found: list[Any] = [title, verdict, facts, overview.session_notes(bundle)]
    found += [overview.joint_table(bundle), overview.metadata_facts(bundle)]
    found += [overview.port_table(bundle), overview.carry_table(bundle)]
    structure = bundle.structure
    if structure is not None:
        found += [overview.graph_table(graph) for graph in structure.graphs]
        found.append(_cut(overview.module_table(structure), full))
    if verdict.parity is not None:
        found.append(overview.parity_table(bundle, verdict.parity))
    if problem:
        found.append(overview.Facts("Latency", [("latency.json", problem)]))
    found += [overview.latency_table(bundle, verdict.parity, latency)]
    found.append(overview.artefact_table(bundle))
    if full:
        if structure is not None:
            found.append(overview.operation_table(structure))
        found += [overview.packed_table(bundle), overview.file_table(bundle)]
    found.append(overview.provenance(bundle))
    return found


def _cut(table: "Table", full: bool) -> "Table":
    if full or len(table.rows) <= LONGEST_TABLE:
        return table
    left = len(table.rows) - LONGEST_TABLE
    more = (f"... {left} more with --full", *[""] * (len(table.headers) - 1))
    return dataclasses.replace(table, rows=[*table.rows[:LONGEST_TABLE], more])


def describe(bundle: "Bundle") -> dict[str, Any]:
    """Collect what a script wants to know about a bundle.

    Args:
        bundle: A bundle, whose files have been checked.
    """
    import msgspec

    from serving import overview
    from serving.overview.latency import recorded_latency

    manifest = bundle.manifest
    verdict = overview.verdict_on(bundle)
    latency, _ = recorded_latency(bundle)
    ports = {
        "carry": manifest.carry_ports,
        "observation": manifest.observation_ports,
        "reset": [] if manifest.reset_port is None else [manifest.reset_port],
        "action": manifest.action_ports,
        "extra output": manifest.extra_output_ports,
    }
    operations = {} if bundle.structure is None else bundle.structure.operations
    return {
        "path": str(bundle.path),
        "name": manifest.name,
        "fingerprint": bundle.fingerprint,
        "format_version": manifest.format_version,
        "verdict": {
            "state": verdict.state,
            "headline": verdict.headline,
            "details": verdict.details,
        },
        "batch_size": manifest.batch_size,
        "control_rate_hz": manifest.control_rate_hz,
        "session": [dataclasses.asdict(note) for note in overview.session_notes(bundle)],
        "ports": {role: msgspec.to_builtins(list(group)) for role, group in ports.items()},
        "artefacts": {
            key: {
                "entry": artefact.entry,
                "size": sum(file.size for file in artefact.files),
                "opset": artefact.opset,
                "operations": operations.get(key),
                "files": msgspec.to_builtins(artefact.files),
            }
            for key, artefact in manifest.artefacts.items()
        },
        "metadata": msgspec.to_builtins(manifest.metadata),
        "structure": msgspec.to_builtins(bundle.structure),
        "parity": msgspec.to_builtins(verdict.parity),
        "latency": msgspec.to_builtins(latency),
        "versions": manifest.versions,
        "git_commit": manifest.git_commit,
    }
