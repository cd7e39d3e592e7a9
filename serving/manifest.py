"""The types of a bundle's manifest.

They only hold values. What a manifest must obey beyond its types is in `serving.manifest_checks`;
`serving.manifest_json` reads and writes the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from serving.errors import BundleError
from serving.tree import Node

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
INITIAL_CARRY_FILE = "initial_carry.safetensors"
GOLDEN_FILE = "golden.safetensors"

Numbers = float | list[float] | dict[str, float | list[float]] | None
"""One number for all, a list in port order, or either for each action port by name."""


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named tensor of the step. `shape` has no batch axis, `path` leads to it in its tree."""

    name: str
    path: list[str | int]
    shape: list[int]
    dtype: str


class CarryPort(Port, frozen=True, forbid_unknown_fields=True):
    """A tensor that goes in as `name` and comes out, one step later, as `next_name`."""

    next_name: str
    reset: Literal["initial", "keep"]
    """Whether resetting a row sets its initial value or leaves this tensor alone."""
    kind: Literal["state", "delay_buffer", "packed_delays"]
    """A delay buffer holds past values, newest first, on its first axis after the batch axis.

    Packed delays are several such buffers in one row; `CarryLeaf.slots` says where each lies.
    """


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the bundle: posix path relative to it, SHA-256 in lower-case hex, size in bytes."""

    path: str
    sha256: str
    size: int


class Artefact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The step in one format. All its files lie below the first directory of `entry`."""

    format: Literal["stablehlo", "saved_model", "onnx", "litert", "c"]
    flavour: Literal["", "portable", "xla"] = ""
    entry: str
    """Relative path of what a runtime loads: a file, or the directory of a SavedModel."""
    files: list[File] = []
    opset: int | None = None
    details: dict[str, str | int | float | bool | None] = {}


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a robot has to know beside the network.

    Lists follow the action's elements, leaf after leaf in port order; mappings go by action port.
    """

    joint_names: list[str] | dict[str, list[str]] | None = None
    default_joint_positions: list[float] | dict[str, list[float]] | None = None
    joint_stiffness: list[float] | dict[str, list[float]] | None = None
    """Gain of each joint's position, in the units of torque per angle that the robot uses."""
    joint_damping: list[float] | dict[str, list[float]] | None = None
    """Gain of each joint's velocity, likewise."""
    action_scale: Numbers = None
    action_offset: Numbers = None
    action_low: Numbers = None
    """Lower limit of what the robot may be sent, so after scale and offset."""
    action_high: Numbers = None
    """Upper limit, likewise."""
    action_applied_by: Literal["policy", "robot"] | None = None
    """Who applies scale, offset and limits: "policy" if what the step returns has been scaled,
    by the network itself or by the export (`Manifest.applied_to_action`)."""
    command_names: list[str] | None = None
    """Commands that the policy was trained to follow."""
    observation_terms: list[str] | dict[str, list[str]] | None = None
    quaternion_order: Literal["wxyz", "xyzw"] | None = None
    units: str | dict[str, str] | None = None
    safe_action: Numbers = None
    extra: dict[str, Any] = {}
    """Whatever else the user wants to carry along; JSON values."""


class CarryLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What became of one leaf of the network's own carry."""

    source: Literal["exported", "delay_buffer", "delay_pointer", "dropped"]
    port: str | None
    """The carry port that holds it, for "exported" and "delay_buffer"."""
    slots: list[int] | None = None
    """For a buffer in packed delays: where in the row the value of 1, 2, … steps ago begins."""
    fill: list[Any] | None
    """Values to put back for a leaf that did not travel; None for zeros."""
    shape: list[int]
    dtype: str
    key_impl: str | None = None
    """The PRNG implementation where the leaf is a JAX key."""


class NetworkCarry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The network's own carry: its tree, and for each leaf in order what became of it."""

    tree: Node
    leaves: list[CarryLeaf]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a bundle says about itself. See docs of the fields' types for their meaning.

    Inputs of every artefact are the carry ports, the observation ports, then the reset port if
    there is one; outputs the action ports, the next carry, then the extra outputs, each in the
    order given here.
    """

    format_version: int = FORMAT_VERSION
    name: str
    batch_size: int | None
    """The only batch size the artefacts take, or None if they take any."""
    control_rate_hz: float | None
    observation: Node
    action: Node
    observation_ports: list[Port]
    carry_ports: list[CarryPort]
    action_ports: list[Port]
    extra_outputs: list[str] = []
    """What was asked for beside the action; the ports below are what that stands for."""
    extra_output_ports: list[Port]
    reset_port: Port | None = None
    """One boolean for each row, true to start it from the initial carry in that step; None where
    the caller has to reset the carry."""
    network_carry: NetworkCarry
    disabled_passes: list[str] = []
    """Simplifications of the step that were switched off."""
    metadata: Metadata
    applied_to_action: list[str] = []
    """Fields of the metadata that the artefacts apply to the network's action, in this order."""
    versions: dict[str, str]
    git_commit: str | None
    artefacts: dict[str, Artefact]
    files: list[File] = []
    """Initial carry, golden trajectory, and what the network is made of, if it was recorded."""


ALIASES = {
    "default_joint_pos": "default_joint_positions",
    "observation_names": "observation_terms",
}
"""Names that robot projects use for a field, to the field."""


def metadata_from(values: Mapping[str, Any] | None) -> Metadata:
    """Sorts a user's mapping into the known fields and `extra`.

    Arrays and NumPy scalars become lists and numbers. A key `extra` that holds a mapping is merged
    with the unknown keys. `ALIASES` are taken for the fields that they mean.

    >>> metadata_from({"joint_names": ["hip"], "robot": "R2"}).extra
    {'robot': 'R2'}

    Raises:
        BundleError: if a known field has a value of the wrong type, or a value is not JSON, such
            as NaN.
    """
    if values is not None and not isinstance(values, Mapping):
        raise BundleError("metadata", f"expected a mapping, got {type(values).__name__}")
    known = set(Metadata.__struct_fields__)
    try:
        plain = {str(key): _to_json(value, str(key)) for key, value in (values or {}).items()}
    except RecursionError as error:
        raise BundleError("metadata", "is nested too deeply, or within itself") from error
    for alias, field in ALIASES.items():
        if alias in plain:
            if field in plain:
                raise BundleError("metadata", f"{alias} is another name of {field}; give only one")
            plain[field] = plain.pop(alias)
    extra = plain.pop("extra", {})
    if not isinstance(extra, dict):
        raise BundleError("metadata", f"extra: expected a mapping, got {type(extra).__name__}")
    fields = {key: value for key, value in plain.items() if key in known}
    fields["extra"] = {**extra, **{k: v for k, v in plain.items() if k not in known}}
    try:
        return msgspec.convert(fields, Metadata)
    except msgspec.ValidationError as error:
        raise BundleError("metadata", str(error)) from error


def _to_json(value: Any, where: str) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{where}.{index}") for index, item in enumerate(value)]
    if hasattr(value, "__array__"):
        return _to_json(np.asarray(value), where)
    if isinstance(value, float) and not math.isfinite(value):
        raise BundleError("metadata", f"{where} is {value}; only finite numbers can be stored")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise BundleError("metadata", f"{where}: {type(value).__name__} cannot be stored as JSON")
