"""The policy's card: a README in the bundle for whoever finds it on a robot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serving.manifest import Manifest, Port


def write_card(directory: Path, manifest: Manifest) -> None:
    """Write `README.md` into the bundle under construction."""
    (directory / "README.md").write_text(card(manifest), encoding="utf-8")


def card(manifest: Manifest) -> str:
    """Return the card's text in Markdown."""
    batch = "any" if manifest.batch_size is None else str(manifest.batch_size)
    rate = "not stated" if manifest.control_rate_hz is None else f"{manifest.control_rate_hz:g} Hz"
    lines = [
        f"# {manifest.name}",
        "",
        "A policy exported as one step, `step(carry, observation) -> (action, next_carry)`.",
        "",
        f"- batch size: {batch}",
        f"- control rate: {rate}",
        f"- artefacts: {', '.join(sorted(manifest.artefacts))}",
        "",
        "| tensor | role | dtype | shape without batch |",
        "|---|---|---|---|",
    ]
    lines += _rows("observation", manifest.observation_ports)
    lines += _rows("carry in", manifest.carry_ports)
    lines += _rows("rows to start afresh", [p for p in [manifest.reset_port] if p is not None])
    lines += _rows("action", manifest.action_ports)
    lines += [
        f"| `{port.next_name}` | carry out, fed back as `{port.name}` | {port.dtype} | "
        f"{port.shape} |"
        for port in manifest.carry_ports
    ]
    lines += _rows("extra output", manifest.extra_output_ports)
    lines += [
        "",
        "Acting with it, without JAX or TensorFlow:",
        "",
        "```python",
        "from serving import load_policy",
        "",
        'session = load_policy("path/to/this/directory", runtime="onnx").session()',
        "action = session.step(observation)",
        "```",
        "",
        "`report.html` shows all of this and the network's graph in a browser, `nnx-ppo inspect "
        "DIRECTORY`",
        "in a terminal. `nnx-ppo selftest DIRECTORY` replays the recorded trajectory on this "
        "machine;",
        "`parity.json`, once `nnx-ppo verify` has run, says how close each artefact is to the "
        "network.",
        "",
    ]
    return "\n".join(lines)


def _rows(role: str, ports: Sequence[Port]) -> list[str]:
    return [f"| `{port.name}` | {role} | {port.dtype} | {port.shape} |" for port in ports]
