"""A model for Triton's onnxruntime backend: the server itself keeps the carry of each sequence.

Triton calls this implicit state. A sequence begins with the values of the files below
`initial_state/`. See Triton's guide to implicit state management for what it asks of a model.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from serving.bundle import Bundle
from serving.errors import BundleError, FleetError
from serving.fleet.model_config import implicit_state_config
from serving.fleet.onnx_graph import COLUMN, add_columns
from serving.fleet.settings import FleetSettings
from serving.manifest import CarryPort

ONNX = "onnx"
INITIAL_STATE = "initial_state"


def write_implicit_state(
    bundle: Bundle, directory: Path, version: Path, name: str, settings: FleetSettings
) -> str:
    """Writes the graph and the initial states of a model.

    Args:
        bundle: the policy.
        directory: the model's.
        version: of the model's version, below it.
        name: the model's.
        settings: how it is served.

    Returns:
        The model's configuration.

    Raises:
        FleetError: if the bundle has no ONNX file, or one for a fixed batch.
        BundleError: if the file is not what the manifest says.
    """
    manifest = bundle.manifest
    if ONNX not in manifest.artefacts:
        raise FleetError(
            f"{bundle.path}: has no ONNX file for the onnxruntime backend; it has "
            f"{sorted(manifest.artefacts)}; export the format too"
        )
    if manifest.batch_size is not None:
        raise FleetError(
            f"{bundle.path}: was exported for a batch of {manifest.batch_size} only, and Triton's "
            "onnxruntime backend batches as many requests as there are; export it with "
            "batch_size=None, or use the python backend"
        )
    # What Triton can keep, and hand over as a control, has an axis beside the batch.
    without_axis = [port for port in manifest.carry_ports if not port.shape]
    columns = {port.name for port in without_axis} | {port.next_name for port in without_axis}
    if manifest.reset_port is not None:
        columns.add(manifest.reset_port.name)
    _write_graph(bundle, version, columns)
    states = []
    (directory / INITIAL_STATE).mkdir()
    for index, port in enumerate(manifest.carry_ports):
        value = bundle.initial_carry[port.name]
        data = value.astype(value.dtype.newbyteorder("<")).tobytes()
        (directory / INITIAL_STATE / f"{index}.bin").write_bytes(data)
        states.append((_with_column(port), f"{index}.bin"))
    return implicit_state_config(
        name,
        manifest,
        settings,
        states=states,
        start_input=None if manifest.reset_port is None else manifest.reset_port.name + COLUMN,
    )


def _with_column(port: CarryPort) -> CarryPort:
    if port.shape:
        return port
    return msgspec.structs.replace(
        port, name=port.name + COLUMN, next_name=port.next_name + COLUMN, shape=[1]
    )


def _write_graph(bundle: Bundle, version: Path, columns: set[str]) -> None:
    artefact = bundle.artefact(ONNX)
    above = artefact.entry.rpartition("/")[0]
    for file in artefact.files:
        data = bundle.artefact_bytes(ONNX, file.path)
        target = version / file.path.removeprefix(f"{above}/")
        if file.path == artefact.entry:
            target = version / "model.onnx"
            try:
                data = add_columns(data, columns)
            except (ValueError, StopIteration) as error:
                raise BundleError(
                    bundle.path / file.path, f"is no ONNX model: {error}; export it again"
                ) from error
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
