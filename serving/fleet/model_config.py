"""The model's `config.pbtxt`: what Triton has to know, and what our clients want to.

Dimensions there are without the batch axis, and there is at least one, so a scalar port has [1].
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence

from serving.errors import FleetError
from serving.fleet.protocol import TYPES
from serving.fleet.settings import FleetSettings
from serving.manifest import CarryPort, Manifest, Port
from serving.manifest_json import encode_manifest

CONFIG_FILE = "config.pbtxt"

MANIFEST_PARAMETER = "nnx_ppo.manifest"
"""The bundle's `manifest.json`."""
SETTINGS_PARAMETER = "nnx_ppo.settings"
"""`FleetSettings` as JSON."""
INITIAL_CARRY_PARAMETER = "nnx_ppo.initial_carry"
"""For clients that keep the carry: its values for a fresh environment, by port, as JSON."""

START_INPUT = "start"
"""Input of a stateless model: true for a row that begins with the carry of a fresh environment."""

SPARE_SEQUENCES = 64
"""Triton is given so many places more than there may be sequences, so that it hands the next one
to our model, which says why it is refused, and does not let it wait without a word."""


def triton_type(port: Port) -> str:
    """Returns Triton's name of a port's element type.

    Raises:
        FleetError: if it has none.
    """
    if port.dtype not in TYPES:
        raise FleetError(f"{port.name}: Triton has no type for {port.dtype}")
    return f"TYPE_{TYPES[port.dtype]}"


def triton_dims(port: Port) -> list[int]:
    """Returns a port's dimensions as Triton wants them.

    Raises:
        FleetError: if an axis is empty, which Triton does not allow.
    """
    if 0 in port.shape:
        raise FleetError(
            f"{port.name} has the shape {port.shape}; Triton takes no tensor with an empty axis. "
            "Leave it out of the network's observation, action or carry"
        )
    return list(port.shape) or [1]


def python_config(
    name: str, manifest: Manifest, settings: FleetSettings, initial_carry: str = ""
) -> str:
    """Returns the configuration of our Python model.

    Args:
        name: the model's.
        manifest: of the bundle.
        settings: with mode "sequences" or "stateless".
        initial_carry: as JSON, for a stateless model.

    Raises:
        FleetError: if Triton cannot take a port.
    """
    inputs = list(manifest.observation_ports)
    outputs = [*manifest.action_ports, *manifest.extra_output_ports]
    stateless = settings.mode == "stateless"
    if stateless:
        inputs += [*manifest.carry_ports, Port(START_INPUT, [], [], "bool")]
        outputs += next_carry_ports(manifest)
    size = manifest.batch_size or settings.max_batch_size
    parameters = {INITIAL_CARRY_PARAMETER: initial_carry} if stateless else {}
    return _config(
        [
            *_head(name, "python", size),
            *_tensors("input", map(_tensor, inputs)),
            *_tensors("output", map(_tensor, outputs)),
            *(_dynamic_batching(settings) if stateless else _sequence_batching(settings, size)),
            # The carries lie in this one process.
            "instance_group [ { kind: KIND_CPU count: 1 } ]",
        ],
        manifest,
        settings,
        parameters,
    )


def implicit_state_config(
    name: str,
    manifest: Manifest,
    settings: FleetSettings,
    *,
    states: Sequence[tuple[CarryPort, str]],
    start_input: str | None,
) -> str:
    """Returns the configuration for Triton's onnxruntime backend, which keeps the carry itself.

    Args:
        name: the model's.
        manifest: of the bundle.
        settings: with mode "implicit_state".
        states: carry ports as the graph has them, each with its file below `initial_state/`.
        start_input: the graph's input [B, 1] that starts rows afresh; None if it has none.

    Raises:
        FleetError: if Triton cannot take a port.
    """
    outputs = [*manifest.action_ports, *manifest.extra_output_ports]
    # A control input that the graph does not have would be refused.
    controls = "" if start_input is None else _control(start_input, "START", "bool_false_true")
    kept = [_state(port, file) for port, file in states]
    lines = [
        *_head(name, "onnxruntime", settings.max_batch_size),
        'default_model_filename: "model.onnx"',
        *_tensors("input", map(_reshaped, manifest.observation_ports)),
        *_tensors("output", map(_reshaped, outputs)),
        "sequence_batching {",
        f"  max_sequence_idle_microseconds: {_microseconds(settings.idle_timeout_s)}",
        *_oldest(settings, settings.max_sequences, settings.max_batch_size),
        *([f"  control_input [ {controls} ]"] if controls else []),
        *(["  state [", ",\n".join(kept), "  ]"] if kept else []),
        "}",
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
    ]
    return _config(lines, manifest, settings, _ONNXRUNTIME_PARAMETERS)


# As in `serving.runtimes.onnx`: a small network gains nothing from more threads.
_ONNXRUNTIME_PARAMETERS = {"intra_op_thread_count": "1", "inter_op_thread_count": "1"}


def next_carry_ports(manifest: Manifest) -> list[Port]:
    """Returns the carry ports as they come out of a step."""
    return [Port(p.next_name, p.path, p.shape, p.dtype) for p in manifest.carry_ports]


def quoted(text: str) -> str:
    r"""Writes a string as protobuf's text format has it.

    >>> print(quoted('a "b"\\'))
    "a \"b\"\\"
    """
    out = []
    for byte in text.encode("utf-8"):
        character = chr(byte)
        if character in '"\\':
            out.append("\\" + character)
        elif 32 <= byte < 127:
            out.append(character)
        else:
            out.append(f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def _config(
    lines: Iterable[str], manifest: Manifest, settings: FleetSettings, parameters: dict[str, str]
) -> str:
    text = json.dumps(json.loads(encode_manifest(manifest)), separators=(",", ":"))
    everything = {
        **parameters,
        SETTINGS_PARAMETER: json.dumps(dataclasses.asdict(settings)),
        MANIFEST_PARAMETER: text,
    }
    entries = [
        f"parameters {{ key: {quoted(key)} value {{ string_value: {quoted(value)} }} }}"
        for key, value in everything.items()
    ]
    return "\n".join([*lines, *entries]) + "\n"


def _head(name: str, backend: str, max_batch_size: int) -> list[str]:
    return [
        "# Written by nnx-ppo triton.",
        f"name: {quoted(name)}",
        f"backend: {quoted(backend)}",
        f"max_batch_size: {max_batch_size}",
    ]


def _tensors(field: str, entries: Iterable[str]) -> list[str]:
    return [f"{field} [", ",\n".join(f"  {entry}" for entry in entries), "]"]


def _tensor(port: Port) -> str:
    return f"{{ name: {quoted(port.name)} {_type_and_dims(port)} }}"


def _reshaped(port: Port) -> str:
    # Here the graph's own tensor has no axis but the batch.
    reshape = "" if port.shape else "reshape: { shape: [ ] } "
    return f"{{ name: {quoted(port.name)} {_type_and_dims(port)} {reshape}}}"


def _type_and_dims(port: Port) -> str:
    return f"data_type: {triton_type(port)} dims: {triton_dims(port)}"


def _state(port: CarryPort, file: str) -> str:
    return (
        f"    {{ input_name: {quoted(port.name)} output_name: {quoted(port.next_name)} "
        f"{_type_and_dims(port)}\n      initial_state: {{ name: {quoted(port.name)} "
        f"{_type_and_dims(port)} data_file: {quoted(file)} }} }}"
    )


def _sequence_batching(settings: FleetSettings, batch_size: int) -> list[str]:
    # No control inputs: our model asks each request for its flags and its correlation ID, which
    # may then be a number or a string.
    return [
        "sequence_batching {",
        f"  max_sequence_idle_microseconds: {_microseconds(settings.idle_timeout_s)}",
        *_oldest(settings, settings.max_sequences + SPARE_SEQUENCES, batch_size),
        "}",
    ]


def _oldest(settings: FleetSettings, candidates: int, batch_size: int) -> list[str]:
    delay = _microseconds(settings.max_queue_delay_s)
    # A delay ends early when a preferred size is reached.
    preferred = [f"    preferred_batch_size: [ {batch_size} ]"] if delay else []
    return [
        "  oldest {",
        f"    max_candidate_sequences: {candidates}",
        *preferred,
        f"    max_queue_delay_microseconds: {delay}",
        "  }",
    ]


def _dynamic_batching(settings: FleetSettings) -> list[str]:
    delay = _microseconds(settings.max_queue_delay_s)
    return [f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}"]


def _control(name: str, kind: str, values: str) -> str:
    return (
        f"{{ name: {quoted(name)} control "
        f"[ {{ kind: CONTROL_SEQUENCE_{kind} {values}: [ false, true ] }} ] }}"
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
