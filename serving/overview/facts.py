"""What a policy is, what whoever runs it has to do, and where it comes from."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np

from serving import tree
from serving.bundle import Bundle
from serving.manifest import Manifest, Port
from serving.overview.sections import Facts, Note, byte_size, duration, plural, printable
from serving.tensors import byte_count


def key_facts(bundle: Bundle) -> Facts:
    """Returns the numbers by which one policy is told from another."""
    manifest = bundle.manifest
    rate = manifest.control_rate_hz
    period = "" if rate is None else f", {duration(1e6 / rate)} per step"
    rows = [
        ("control rate", "not recorded" if rate is None else f"{rate:g} Hz{period}"),
        ("batch size", "any" if manifest.batch_size is None else str(manifest.batch_size)),
        ("observation", _sum_of(manifest.observation_ports)),
        ("action", _sum_of(manifest.action_ports)),
        ("carry", _sum_of(manifest.carry_ports) if manifest.carry_ports else "none"),
        ("formats", ", ".join(manifest.artefacts)),
    ]
    if bundle.structure is not None:
        modules = bundle.structure.modules
        own = {m.path: sum(math.prod(v.shape) for v in m.variables if v.trained) for m in modules}
        used = sum(own[m.path] for m in modules if m.operations)
        total = modules[0].parameters
        text = f"{total:,}" if used == total else f"{used:,} exported of {total:,}"
        rows.insert(5, ("parameters", text))
    return Facts("Policy", rows)


def _sum_of(ports: list[Any]) -> str:
    elements = sum(math.prod(port.shape) for port in ports)
    return (
        f"{plural(elements, 'number')} in {plural(len(ports), 'tensor')}, "
        f"{byte_size(byte_count(ports))}"
    )


def session_notes(bundle: Bundle) -> list[Note]:
    """Returns what has to be fed, kept, reset and applied by whoever runs the policy."""
    manifest = bundle.manifest
    notes = [_rate_note(manifest), _normalizer_note(bundle), *_observation_notes(manifest)]
    notes += [*_action_notes(manifest), *_carry_notes(manifest)]
    if manifest.metadata.safe_action is None:
        text = "Not recorded: say in the control loop what to send when something is wrong."
        notes.append(Note("safe action", text, "attention"))
    else:
        notes.append(Note("safe action", "Recorded: send it when something is wrong."))
    return notes


def _rate_note(manifest: Manifest) -> Note:
    rate = manifest.control_rate_hz
    if rate is None:
        text = "The control rate is not recorded; a policy acts as trained only at its own rate."
        return Note("rate", text, "attention")
    return Note("rate", f"Step at {rate:g} Hz, every {duration(1e6 / rate)}.")


def _normalizer_note(bundle: Bundle) -> Note:
    if bundle.structure is None:
        text = "Not recorded whether the step normalizes its observations."
        return Note("normalization", text, "attention")
    inside = bundle.structure.normalizers
    if not inside:
        text = (
            "The step holds no Normalizer. If training normalized observations outside the "
            "network, do the same."
        )
        return Note("normalization", text, "attention")
    unused = [normalizer.path for normalizer in inside if normalizer.samples == 0]
    if unused:
        text = (
            f"The step normalizes, but with no statistics: {printable(', '.join(unused))} has seen "
            "no observation and takes mean 0 and standard deviation 10."
        )
        return Note("normalization", text, "attention")
    where = ", ".join(f"{n.path or 'network'} ({n.samples:,.0f} observations)" for n in inside)
    text = f"Included: feed raw observations. {printable(where)}."
    return Note("normalization", text)


def _observation_notes(manifest: Manifest) -> list[Note]:
    notes = []
    order = manifest.metadata.quaternion_order
    if order is not None:
        notes.append(Note("quaternions", f"In the order {order}."))
    nodes = tree.leaves(manifest.observation)
    paths = tree.leaf_paths(manifest.observation, "obs")
    ignored = [path for path, leaf in zip(paths, nodes, strict=True) if leaf.port is None]
    if ignored:
        text = f"No action depends on {printable(', '.join(ignored))}; it need not be measured."
        notes.append(Note("not needed", text))
    return notes


def _action_notes(manifest: Manifest) -> list[Note]:
    metadata = manifest.metadata
    fields = {
        "scale": metadata.action_scale,
        "offset": metadata.action_offset,
        "limits": metadata.action_low if metadata.action_low is not None else metadata.action_high,
    }
    given = [name for name, value in fields.items() if value is not None]
    if not given:
        return [Note("action", "Sent as it is: no scale, offset or limits are recorded.")]
    what = " and ".join([", ".join(given[:-1]), given[-1]] if len(given) > 1 else given)
    if metadata.action_applied_by == "policy":
        return [Note("action", f"The step applies {what} itself: apply nothing.")]
    if metadata.action_applied_by == "robot":
        return [Note("action", f"Apply {what} before sending: action × scale + offset.")]
    text = f"{what.capitalize()} recorded, but not who applies them: set action_applied_by."
    return [Note("action", text, "attention")]


def _carry_notes(manifest: Manifest) -> list[Note]:
    ports = manifest.carry_ports
    if not ports:
        return [Note("carry", "None: an action depends on its own observation alone.")]
    kept = [port.name for port in ports if port.reset == "keep"]
    reset = "a reset sets all to their initial values"
    if kept:
        alone = f"leaves {printable(', '.join(kept))} alone"
        both = len(kept) < len(ports)
        reset = f"a reset {alone}" + (" and sets the rest to initial values" if both else "")
    text = f"Keep {_sum_of(list(ports))} for each robot between steps; {reset}."
    notes = [Note("carry", text)]
    if manifest.reset_port is not None:
        text = (
            f"The input {printable(manifest.reset_port.name)} restarts a row within the step; "
            "false for all others."
        )
        notes.append(Note("reset input", text))
    return notes


def metadata_facts(bundle: Bundle) -> Facts:
    """Returns every field of the metadata that is given and not one number per action element."""
    fields = msgspec.to_builtins(bundle.manifest.metadata)
    extra = fields.pop("extra")
    rows = [
        (key.replace("_", " "), _value(value))
        for key, value in fields.items()
        if value not in (None, {}, [])
    ]
    rows += [(printable(key), _value(value)) for key, value in extra.items()]
    return Facts("Metadata", rows)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return printable(", ".join(value))
    if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return printable(", ".join(f"{key}: {item}" for key, item in value.items()))
    return printable(json.dumps(value, ensure_ascii=False))


def provenance(bundle: Bundle) -> Facts:
    """Returns what the bundle was made with, and what tells it from any other."""
    manifest = bundle.manifest
    rows = [
        ("fingerprint", bundle.fingerprint),
        ("git commit", printable(manifest.git_commit or "not recorded")),
        ("bundle format", str(manifest.format_version)),
    ]
    if manifest.disabled_passes:
        rows.append(("passes switched off", printable(", ".join(manifest.disabled_passes))))
    rows += [(printable(name), printable(text)) for name, text in manifest.versions.items()]
    return Facts("Made with", rows)


def initial_value(values: np.ndarray) -> str:
    """Says what a carry starts with: one number, or the range of several."""
    if not values.size:
        return "empty"
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low:.3g} … {high:.3g}"


def elements_of(port: Port) -> int:
    """Returns how many numbers one row of a port has."""
    return math.prod(port.shape)
