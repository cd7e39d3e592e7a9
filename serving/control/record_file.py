"""The file of a flight record: safetensors, with what is not an array as JSON in its metadata.

Tensors are named by a role and a port: `carry/...`, `observation/...` and `action/...` are
[S, B, ...] for S policy steps of B rows, `step/...` [S] and `tick/...` [T] say when and how, and
`final_carry/...` [B, ...] is the carry after all of it. `read_record` refuses, in this order: a
file above `MAX_RECORD_BYTES`, what is no safetensors file, what has no description of this format
and version, and tensors of other lengths than they should have. S may be 0, where nothing came of
any `read`, but not T too. `check_record` compares the rest with a bundle.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from serving.errors import RecordError
from serving.files import write_stream_atomically
from serving.latency import this_machine
from serving.manifest import Manifest
from serving.session import Session
from serving.tensors import DTYPE_NAMES, check_tensors, decode_tensors, port_shapes

RECORD_VERSION = 1
MAX_RECORD_BYTES = 4 * 1024**3
_KEY = "nnx_ppo_flight_record"
_CHUNK = 1024 * 1024

STEP_OK, STEP_REFUSED, STEP_NOT_RUN = 0, 1, 2
"""Status of a policy step: an action came; the runtime ran and its outputs were refused; the
observation was refused or the runtime failed, so that there are no outputs."""

STEP_COLUMNS = {
    "step/tick": "int64",
    "step/time_s": "float64",
    "step/carry_changes": "int64",
    "step/status": "uint8",
}
TICK_COLUMNS = {
    "tick/tick": "int64",
    "tick/deadline_s": "float64",
    "tick/woken_s": "float64",
    "tick/ended_s": "float64",
    "tick/mode": "uint8",
    "tick/faults": "uint16",
}


class RecordInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a record says about itself."""

    version: int = RECORD_VERSION
    policy: str
    manifest_sha256: str
    """By which the bundle is known that made the actions."""
    runtime: str
    batch_size: int | None
    rate_hz: float
    policy_every: int
    denormals_flushed: bool = False
    final_carry_changes: int = 0
    reason: str = ""
    """Why it was written."""
    created: str = ""
    """When, in UTC."""
    faults: list[dict[str, Any]] = []
    """The first and the last faults of the run."""
    versions: dict[str, str] = {}
    machine: dict[str, str | int] = {}

    @classmethod
    def of_session(cls, session: Session, *, rate_hz: float, policy_every: int) -> RecordInfo:
        """Returns what is known before a run."""
        return cls(
            policy=session.manifest.name,
            manifest_sha256=session.fingerprint,
            runtime=session.runtime,
            batch_size=session.batch_size,
            rate_hz=rate_hz,
            policy_every=policy_every,
            versions=_loaded_versions(),
            machine=this_machine(),
        )


@dataclasses.dataclass(frozen=True)
class FlightRecord:
    """A record that was read."""

    file: Path
    """Where it was read from."""
    info: RecordInfo
    """What it says about itself."""
    tensors: dict[str, np.ndarray]
    """Its arrays; see the top of this file for their names."""

    @property
    def steps(self) -> int:
        """Number of policy steps, those without an action included."""
        return len(self.tensors["step/tick"])


def write_record(file: Path, pieces: dict[str, list[np.ndarray]], info: RecordInfo) -> None:
    """Writes a record, complete or not at all, from memory as it lies.

    Nothing is copied and the GIL is released while the disk works, so that a control loop on
    another thread goes on meanwhile.

    Args:
        file: the new file.
        pieces: each array as pieces along its first axis.
        info: what the record says about itself.

    Raises:
        FileExistsError: if there is such a file.
        OSError: if it cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {_KEY: msgspec.json.encode(info).decode()}}
    offset = 0
    for name, parts in pieces.items():
        size = sum(part.nbytes for part in parts)
        header[name] = {
            "dtype": DTYPE_NAMES[parts[0].dtype.name],
            "shape": [sum(len(part) for part in parts), *parts[0].shape[1:]],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(stream: BinaryIO) -> None:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for part in (part for parts in pieces.values() for part in parts if part.size):
            if sys.byteorder == "big" and part.dtype.itemsize > 1:
                part = part.astype(part.dtype.newbyteorder("<"))
            memory = memoryview(np.ascontiguousarray(part).data).cast("B")
            for begin in range(0, len(memory), _CHUNK):
                stream.write(memory[begin : begin + _CHUNK])

    write_stream_atomically(file, write, replace=False)


def read_record(path: str | Path) -> FlightRecord:
    """Reads a record and checks all that can be checked without its bundle.

    Raises:
        RecordError: naming the file and the reason.
    """
    file = Path(path)
    try:
        if (size := file.stat().st_size) > MAX_RECORD_BYTES:
            raise RecordError(f"{file}: {size} bytes, more than {MAX_RECORD_BYTES}")
        data = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise RecordError(f"{file}: cannot be read: {error}") from error
    tensors = decode_tensors(data, file, _record_error)
    info = _parse_info(data, file)
    for columns in (STEP_COLUMNS, TICK_COLUMNS):
        lengths = {len(tensors[name]) for name in columns if name in tensors and tensors[name].ndim}
        length = max(lengths, default=0)
        given = {name: tensors[name] for name in columns if name in tensors}
        check_tensors(
            given,
            {name: ((length,), dtype) for name, dtype in columns.items()},
            file,
            _record_error,
        )
    if not len(tensors["step/tick"]) and not len(tensors["tick/tick"]):
        raise RecordError(f"{file}: holds neither a step of a policy nor a tick")
    if (tensors["step/status"] > STEP_NOT_RUN).any():
        raise RecordError(f"{file}: step/status has {tensors['step/status'].max()}, at most 2")
    return FlightRecord(file, info, tensors)


def check_record(record: FlightRecord, manifest: Manifest, fingerprint: str) -> None:
    """Checks that a record was made with a bundle, and that its tensors fit the ports.

    Raises:
        RecordError: naming the file and the reason.
    """
    info = record.info
    if info.manifest_sha256 != fingerprint:
        raise RecordError(
            f"{record.file}: was recorded with another bundle, of the policy {info.policy!r} with "
            f"a manifest of SHA-256 {info.manifest_sha256[:16]}…; this one, {manifest.name!r}, has "
            f"{fingerprint[:16]}…. Give the bundle that was running"
        )
    rows = 1 if info.batch_size is None else info.batch_size
    lead = (record.steps, rows)
    expected: dict[str, tuple[tuple[int, ...], str]] = {}
    for role, ports, leading in (
        ("carry", manifest.carry_ports, lead),
        ("observation", manifest.observation_ports, lead),
        ("action", manifest.action_ports, lead),
        ("final_carry", manifest.carry_ports, (rows,)),
    ):
        shapes = port_shapes(ports, leading)
        expected.update({f"{role}/{name}": shape for name, shape in shapes.items()})
    own = (*STEP_COLUMNS, *TICK_COLUMNS, "tick/sent")
    given = {name: array for name, array in record.tensors.items() if name not in own}
    check_tensors(given, expected, record.file, _record_error)


def _parse_info(data: bytes, file: Path) -> RecordInfo:
    length = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + length]).get("__metadata__", {}).get(_KEY)
    if text is None:
        raise RecordError(f"{file}: is a safetensors file, but no flight record")
    try:
        version = json.loads(text).get("version")
        if version != RECORD_VERSION:
            raise RecordError(
                f"{file}: version {version!r} of the format, expected {RECORD_VERSION}; read it "
                "with the version of this package that wrote it"
            )
        info = msgspec.json.decode(text, type=RecordInfo)
    except (ValueError, AttributeError, RecursionError) as error:
        raise RecordError(f"{file}: its description is no flight record's: {error}") from error
    if info.batch_size is not None and not 1 <= info.batch_size <= 2**20:
        raise RecordError(f"{file}: batch_size is {info.batch_size}")
    return info


def _loaded_versions() -> dict[str, str]:
    """Versions of the libraries in this process that compute."""
    from importlib import metadata  # takes a tenth of what all of this package takes

    versions = {"python": sys.version.split()[0]}
    for module in ("numpy", "onnxruntime", "jax", "tensorflow"):
        if module in sys.modules:
            try:
                versions[module] = metadata.version(module)
            except metadata.PackageNotFoundError:  # another build of it, under another name
                versions[module] = str(getattr(sys.modules[module], "__version__", "unknown"))
    return versions


def _record_error(file: str | Path, reason: str) -> RecordError:
    return RecordError(f"{file}: {reason}")
