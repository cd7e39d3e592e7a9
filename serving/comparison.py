"""In what two bundles differ: what they ask for, what they do, what they are made of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from serving import tree
from serving.bundle import RESET, Bundle
from serving.manifest import Manifest, Port
from serving.overview.sections import byte_size, error_text
from serving.overview.verdict import verdict_on
from serving.policy import Policy
from serving.self_test import replay

SECTIONS = (
    *("interface", "metadata", "initial carry", "behaviour", "structure", "artefacts"),
    *("operations", "parity", "origin"),
)
"""What differences are sorted by, the weightiest for a robot first."""

ABSENT = "absent"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that is not the same."""

    section: str
    """One of `SECTIONS`."""
    what: str
    """Tensor, field, file or module."""
    first: str
    """What the first bundle has."""
    second: str
    """What the second bundle has."""


def compare_bundles(first: Bundle, second: Bundle) -> list[Difference]:
    """Compares what two bundles say and what was recorded of them; runs nothing.

    Returns:
        The differences, in the order of `SECTIONS`.
    """
    found = [
        *_differences("interface", _interface(first), _interface(second)),
        *_differences("metadata", _metadata(first), _metadata(second)),
        *_arrays("initial carry", first.initial_carry, second.initial_carry),
        *_recorded_behaviour(first, second),
        *_differences("structure", _structure(first), _structure(second)),
        *_artefacts(first, second),
        *_differences("operations", _operations(first), _operations(second)),
        *_differences("parity", _parity(first), _parity(second)),
        *_differences("origin", _origin(first), _origin(second)),
    ]
    return found


def same_interface(first: Bundle, second: Bundle) -> bool:
    """Returns whether what is fed to one of two bundles can be fed to the other."""
    keys = ("observation tree", "action tree", "batch size")
    one, other = _interface(first), _interface(second)
    ports = [name for name in {**one, **other} if " " not in name]
    return all(one.get(key) == other.get(key) for key in [*keys, *ports])


def same_observations(first: Bundle, second: Bundle) -> bool:
    """Returns whether both recordings were made of the same observations and resets."""
    names = [RESET, *(port.name for port in first.manifest.observation_ports)]
    return all(
        name in second.golden and _equal(first.golden[name], second.golden[name]) for name in names
    )


def compare_actions(first: Policy, second: Policy) -> list[Difference]:
    """Lets two policies act on the observations that were recorded of the first.

    Both run free, with the recorded resets. Needs the same interface, see `same_interface`.

    Returns:
        One difference for each action and carry tensor that comes out differently.

    Raises:
        ServingError: if a step raises.
    """
    golden = first.bundle.golden
    rows = golden[RESET].shape[1]
    one = replay(first.session(rows, check_finite=False), golden)
    other = replay(second.session(rows, check_finite=False), golden)
    where = f"the first's observations in {first.runtime_name}"
    return [
        dataclasses.replace(difference, what=f"{difference.what}, on {where}")
        for difference in _arrays("behaviour", one, other)
    ]


def _interface(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    described: dict[str, Any] = {
        "batch size": manifest.batch_size,
        "control rate": manifest.control_rate_hz,
        "observation tree": msgspec.to_builtins(manifest.observation),
        "action tree": msgspec.to_builtins(manifest.action),
        "applied to the action": manifest.applied_to_action,
        "network carry": _network_carry(manifest),
    }
    groups: list[Sequence[Port]] = [
        *(manifest.observation_ports, manifest.carry_ports),
        [] if manifest.reset_port is None else [manifest.reset_port],
        *(manifest.action_ports, manifest.extra_output_ports),
    ]
    for ports in groups:
        for port in ports:
            values = msgspec.to_builtins(port)
            kind = f"{values.pop('dtype')}{values.pop('shape')}"
            described[port.name] = {"type": kind, **values}
    described["order of tensors"] = [port.name for ports in groups for port in ports]
    return described


def _network_carry(manifest: Manifest) -> dict[str, Any]:
    """Returns what became of each leaf of the network's own carry, by its path."""
    carry = manifest.network_carry
    paths = tree.leaf_paths(carry.tree, "carry")
    return {
        path: {
            "type": f"{leaf.dtype}{leaf.shape}",
            "source": leaf.source,
            "fill": leaf.fill,
            "port": leaf.port,
            "slots": leaf.slots,
        }
        for path, leaf in zip(paths, carry.leaves, strict=True)
    }


def _metadata(bundle: Bundle) -> dict[str, Any]:
    fields = msgspec.to_builtins(bundle.manifest.metadata)
    extra = fields.pop("extra")
    given = {key: value for key, value in fields.items() if value is not None}
    return {**given, **{f"extra.{key}": value for key, value in extra.items()}}


def _recorded_behaviour(first: Bundle, second: Bundle) -> list[Difference]:
    """Compares golden trajectories: outputs say something only where the inputs are the same."""
    if not same_observations(first, second):
        said = "recorded observations"
        return [Difference("behaviour", said, *(_recording(b) for b in (first, second)))]
    names = {RESET, *(port.name for port in first.manifest.observation_ports)}
    outputs = [
        {name: values for name, values in bundle.golden.items() if name not in names}
        for bundle in (first, second)
    ]
    return _arrays("behaviour", *outputs)


def _recording(bundle: Bundle) -> str:
    steps, rows = bundle.golden[RESET].shape
    means = [
        f"{port.name} mean {bundle.golden[port.name].astype(np.float64).mean():.4g}"
        for port in bundle.manifest.observation_ports[:3]
    ]
    return f"{steps} steps of {rows} rows" + "".join(f", {mean}" for mean in means)


def _arrays(
    section: str, first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
) -> list[Difference]:
    """Compares tensors by name; a difference says how far apart and, over time, where."""
    found = []
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            found.append(
                Difference(section, name, *(_kind(side.get(name)) for side in (first, second)))
            )
            continue
        one, other = first[name], second[name]
        if _equal(one, other):
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            found.append(Difference(section, name, _kind(one), _kind(other)))
            continue
        a, b = one.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        apart = np.where(np.isnan(apart), np.inf, apart)
        place = np.unravel_index(int(np.argmax(apart)), apart.shape)
        index = ", ".join(map(str, place))
        found.append(
            Difference(
                section,
                f"{name}: up to {error_text(float(apart.max()))} apart at [{index}]",
                f"{one[place]:.9g}",
                f"{other[place]:.9g}",
            )
        )
    return found


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    same_type = one.dtype == other.dtype
    return same_type and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _kind(array: np.ndarray | None) -> str:
    return ABSENT if array is None else f"{array.dtype}{list(array.shape)}"


def _structure(bundle: Bundle) -> dict[str, Any]:
    if bundle.structure is None:
        return {}
    described: dict[str, Any] = {}
    for module in bundle.structure.modules:
        values = msgspec.to_builtins(module)
        described[f"module {module.path or 'network'}"] = {
            key: values[key] for key in ("class_path", "settings", "variables", "operations")
        }
    for graph in bundle.structure.graphs:
        where = f"graph {graph.path or 'network'}"
        for population in graph.populations:
            described[f"{where}: population {population.name}"] = msgspec.to_builtins(population)
        for edge in graph.connections:
            key = f"{where}: {edge.source} -> {edge.target}"
            described.setdefault(key, []).append(
                {"delay_steps": edge.delay_steps, "transform": edge.transform}
            )
    for normalizer in bundle.structure.normalizers:
        described[f"normalizer {normalizer.path}"] = {"samples": normalizer.samples}
    return described


def _artefacts(first: Bundle, second: Bundle) -> list[Difference]:
    described = []
    for bundle in (first, second):
        values: dict[str, Any] = {}
        for key, artefact in bundle.manifest.artefacts.items():
            values[key] = f"size {byte_size(sum(file.size for file in artefact.files))}"
            values[f"{key} made as"] = {
                "entry": artefact.entry,
                "opset": artefact.opset,
                **artefact.details,
            }
            for file in artefact.files:
                values[file.path] = f"SHA-256 {file.sha256[:16]}, {byte_size(file.size)}"
        described.append(values)
    return _differences("artefacts", described[0], described[1])


def _operations(bundle: Bundle) -> dict[str, Any]:
    return {} if bundle.structure is None else dict(bundle.structure.operations)


def _parity(bundle: Bundle) -> dict[str, Any]:
    verdict = verdict_on(bundle)
    described: dict[str, Any] = {"verdict": verdict.state}
    for comparison in verdict.parity.comparisons if verdict.parity is not None else ():
        key = f"worst error of {comparison.runtime}"
        error = comparison.worst.max_abs_error
        described[key] = max(error, described.get(key, 0.0))
    return {
        key: error_text(value) if isinstance(value, float) else value
        for key, value in described.items()
    }


def _origin(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "git commit": manifest.git_commit,
        "bundle format": manifest.format_version,
        "passes switched off": manifest.disabled_passes,
        **{f"{name} version": text for name, text in manifest.versions.items()},
    }


def _differences(
    section: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> list[Difference]:
    """Compares two mappings; values that are mappings themselves are compared by field."""
    found = []
    for key in dict.fromkeys([*first, *second]):
        one, other = first.get(key, ABSENT), second.get(key, ABSENT)
        if one == other and type(one) is type(other):
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            fields = _differences(section, one, other)
            found += [dataclasses.replace(f, what=f"{key}: {f.what}") for f in fields]
        else:
            found.append(Difference(section, key, _written(one), _written(other)))
    return found


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        # What only one side has is told by what it is, without all that could be said of it.
        for telling in ("type", "class_path"):
            if telling in value:
                return str(value[telling])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
