"""Say what a bundle holds: tensors, files, what made it, and what the robot has to know."""

import argparse
from pathlib import Path
from typing import Any

from nnx_ppo.cli.output import Output, size, table

EXAMPLES = """examples:
  nnx-ppo inspect policy/
  nnx-ppo inspect policy/ --json | jq .ports
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import read_bundle

    bundle = read_bundle(arguments.bundle)
    data = describe(bundle)
    output.result(data, as_text(data))
    return 0


def describe(bundle: Any) -> dict[str, Any]:
    """Collect what a person or script wants to know about a bundle.

    Args:
        bundle: A `serving.Bundle`, whose files have been checked.
    """
    import msgspec

    manifest = bundle.manifest
    ports = {
        "carry": manifest.carry_ports,
        "observation": manifest.observation_ports,
        "reset": [] if manifest.reset_port is None else [manifest.reset_port],
        "action": manifest.action_ports,
        "extra output": manifest.extra_output_ports,
    }
    return {
        "path": str(bundle.path),
        "name": manifest.name,
        "format_version": manifest.format_version,
        "batch_size": manifest.batch_size,
        "control_rate_hz": manifest.control_rate_hz,
        "ports": {role: msgspec.to_builtins(list(group)) for role, group in ports.items()},
        "artefacts": {
            key: {
                "entry": artefact.entry,
                "size": sum(file.size for file in artefact.files),
                "opset": artefact.opset,
                "files": msgspec.to_builtins(artefact.files),
            }
            for key, artefact in manifest.artefacts.items()
        },
        "metadata": msgspec.to_builtins(manifest.metadata),
        "versions": manifest.versions,
        "git_commit": manifest.git_commit,
    }


def as_text(data: dict[str, Any]) -> str:
    """Lay out what `describe` found for a person."""
    batch = "any" if data["batch_size"] is None else str(data["batch_size"])
    rate = "not given" if data["control_rate_hz"] is None else f"{data['control_rate_hz']:g} Hz"
    sections = [
        f"{data['name']}  (format {data['format_version']}, batch {batch}, control rate {rate})\n"
        f"{data['path']}: every file is as the manifest says",
        table(
            ("tensor", "role", "shape", "dtype", "on reset"),
            [
                (
                    port["name"],
                    role,
                    f"[{', '.join(['batch', *map(str, port['shape'])])}]",
                    port["dtype"],
                    port.get("reset", ""),
                )
                for role, group in data["ports"].items()
                for port in group
            ],
            words=("role", "shape", "dtype", "on reset"),
        ),
        table(
            ("artefact", "loaded from", "size", "opset", "sha256"),
            [
                (
                    key,
                    artefact["entry"],
                    size(artefact["size"]),
                    str(artefact["opset"] or ""),
                    artefact["files"][0]["sha256"][:12] if len(artefact["files"]) == 1 else "",
                )
                for key, artefact in data["artefacts"].items()
            ],
            words=("loaded from",),
        ),
    ]
    known = {key: value for key, value in data["metadata"].items() if value not in (None, {}, [])}
    extra = known.pop("extra", {})
    if known or extra:
        sections.append("\n".join(f"{key}: {value}" for key, value in {**known, **extra}.items()))
    made_with = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    commit = f", commit {data['git_commit']}" if data["git_commit"] else ""
    sections.append(f"made with {made_with}{commit}")
    return "\n\n".join(sections)
