"""Rules of a manifest that its types alone cannot express.

Limits: `MAX_PORTS` ports, `MAX_FILES` files, `MAX_NAME` characters in a port's name, `MAX_PATH` in
a file's path, `MAX_FILE_BYTES` for any file and `MAX_TENSOR_FILE_BYTES` for one read into memory.

Names: a port's name is unique among all ports. A file's path is relative, uses forward slashes, has
no empty, `.` or `..` component, no colon, backslash or control character, and is listed once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from serving import tree
from serving.errors import BundleError, TreeError
from serving.manifest import (
    GOLDEN_FILE,
    INITIAL_CARRY_FILE,
    Artefact,
    CarryLeaf,
    CarryPort,
    File,
    Manifest,
    Port,
)
from serving.structure import STRUCTURE_FILE

MAX_PORTS = 4096
MAX_FILES = 4096
MAX_NAME = 512
MAX_PATH = 1024
MAX_FILE_BYTES = 4 * 1024**3
MAX_TENSOR_FILE_BYTES = 1024**3
MAX_ELEMENTS = 2**31 - 1

DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)
"""Element types a port can have: those NumPy and the formats know."""

ARTEFACTS = {
    "stablehlo": ("stablehlo", ""),
    "saved_model": ("saved_model", "portable"),
    "saved_model_xla": ("saved_model", "xla"),
    "onnx": ("onnx", ""),
    "c": ("c", ""),
    "litert": ("litert", ""),
}
"""Names of artefacts, with the format and flavour each of them has."""

SCALING_FIELDS = ("action_scale", "action_offset", "action_low", "action_high")
"""Fields of the metadata that artefacts can apply to the action, in this order."""

TENSOR_FILES = (INITIAL_CARRY_FILE, GOLDEN_FILE)
OPTIONAL_FILES = (STRUCTURE_FILE,)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_manifest(manifest: Manifest, file: str | Path) -> None:
    """Checks a manifest whose fields have the right types.

    Raises:
        BundleError: naming `file` and the first reason found.
    """
    try:
        _check(manifest)
    except (ValueError, TreeError) as error:
        raise BundleError(file, str(error)) from error


def check_path(path: str) -> None:
    """Checks a relative file path by its text alone.

    Raises:
        ValueError: if it could lead out of the bundle or is written in more than one way.
    """
    shown = repr(path[:80])
    if not path or len(path) > MAX_PATH:
        raise ValueError(f"path {shown} must have 1 to {MAX_PATH} characters")
    if _CONTROL.search(path) or "\\" in path or ":" in path:
        raise ValueError(f"path {shown} has a backslash, colon or control character")
    if path.startswith("/"):
        raise ValueError(f"path {shown} is absolute; it must be relative to the bundle")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"path {shown} has an empty, '.' or '..' component")


def _check(manifest: Manifest) -> None:
    if not manifest.name or len(manifest.name) > MAX_NAME or _CONTROL.search(manifest.name):
        raise ValueError(f"name must have 1 to {MAX_NAME} printable characters")
    if manifest.batch_size is not None and not 1 <= manifest.batch_size <= tree.MAX_AXIS:
        raise ValueError(f"batch_size is {manifest.batch_size}, expected null or at least 1")
    rate = manifest.control_rate_hz
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"control_rate_hz is {rate}, expected null or a positive number")
    unknown = [field for field in manifest.applied_to_action if field not in SCALING_FIELDS]
    if unknown:
        raise ValueError(f"applied_to_action has {unknown[0]!r}, expected some of {SCALING_FIELDS}")
    _check_ports(manifest)
    _check_tree(manifest.observation, "observation", manifest.observation_ports, False)
    _check_tree(manifest.action, "action", manifest.action_ports, True)
    _check_network_carry(manifest)
    _check_files(manifest)


def _check_ports(manifest: Manifest) -> None:
    ports: list[Port] = [
        *manifest.observation_ports,
        *manifest.carry_ports,
        *manifest.action_ports,
        *manifest.extra_output_ports,
    ]
    if (reset := manifest.reset_port) is not None:
        if (reset.shape, reset.dtype) != ([], "bool"):
            raise ValueError(f"reset_port is {reset.dtype}{reset.shape}, expected bool[]")
        ports.append(reset)
    if len(ports) > MAX_PORTS:
        raise ValueError(f"{len(ports)} ports, at most {MAX_PORTS} are allowed")
    if not manifest.action_ports:
        raise ValueError("action_ports is empty; a policy must have an action")
    names = [port.name for port in ports] + [port.next_name for port in manifest.carry_ports]
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"port name {name[:80]!r} is used {count} times")
        if not name or len(name) > MAX_NAME or _CONTROL.search(name) or name == "__metadata__":
            raise ValueError(f"port name {name[:80]!r} is not allowed")
    for port in ports:
        if port.dtype not in DTYPES:
            raise ValueError(
                f"port {port.name}: dtype {port.dtype[:40]!r}, expected one of {sorted(DTYPES)}"
            )
        if len(port.shape) > tree.MAX_RANK or any(size < 0 for size in port.shape):
            raise ValueError(f"port {port.name}: shape {port.shape[:20]} is not allowed")
        if math.prod(port.shape) > MAX_ELEMENTS:
            raise ValueError(f"port {port.name}: more than {MAX_ELEMENTS} elements")


def _check_tree(node: tree.Node, what: str, ports: list[Port], all_used: bool) -> None:
    tree.check_node(node, what)
    by_name = {port.name: port for port in ports}
    seen: set[str] = set()
    for path, leaf in zip(tree.leaf_paths(node, what), tree.leaves(node), strict=True):
        if leaf.port is None:
            if all_used:
                raise ValueError(f"{path}: every leaf of the {what} needs a port")
            continue
        port = by_name.get(leaf.port)
        if port is None or leaf.port in seen:
            reason = "has two leaves" if port else f"is not in {what}_ports"
            raise ValueError(f"{path}: port {leaf.port[:80]!r} {reason}")
        if (leaf.shape, leaf.dtype) != (port.shape, port.dtype):
            raise ValueError(
                f"{path}: {leaf.dtype}{leaf.shape} differs from port {port.name}, "
                f"{port.dtype}{port.shape}"
            )
        seen.add(leaf.port)
    if unused := [name for name in by_name if name not in seen]:
        raise ValueError(f"{what}: no leaf for the ports {unused[:20]}")


def _check_network_carry(manifest: Manifest) -> None:
    carry = manifest.network_carry
    tree.check_node(carry.tree, "network_carry")
    nodes = tree.leaves(carry.tree)
    if len(nodes) != len(carry.leaves):
        raise ValueError(f"network_carry: {len(carry.leaves)} leaves for a tree of {len(nodes)}")
    ports = {port.name: port for port in manifest.carry_ports}
    paths = tree.leaf_paths(carry.tree, "network_carry")
    for path, node, leaf in zip(paths, nodes, carry.leaves, strict=True):
        has_port = leaf.source in ("exported", "delay_buffer")
        if (leaf.port in ports) != has_port or (leaf.port is not None) != has_port:
            raise ValueError(f"{path}: source {leaf.source!r} does not go with port {leaf.port!r}")
        if (node.port, node.shape, node.dtype) != (leaf.port, leaf.shape, leaf.dtype):
            raise ValueError(f"{path}: the tree says {node}, the list of leaves {leaf}")
        if leaf.port is not None:
            _check_slots(path, leaf, ports[leaf.port])


def _check_slots(path: str, leaf: CarryLeaf, port: CarryPort) -> None:
    """Checks that a buffer in packed delays has a place in the row for each of its slots."""
    if (leaf.slots is not None) != (port.kind == "packed_delays"):
        raise ValueError(f"{path}: slots {leaf.slots} do not go with {port.kind} {port.name}")
    if leaf.slots is None:
        return
    width = math.prod(leaf.shape[1:])
    fits = (
        leaf.source == "delay_buffer"
        and leaf.dtype == port.dtype
        and len(port.shape) == 1
        and len(leaf.slots) == leaf.shape[0]
        and all(0 <= column <= port.shape[0] - width for column in leaf.slots)
    )
    if not fits:
        raise ValueError(
            f"{path}: {leaf.dtype}{leaf.shape} at {leaf.slots[:20]} does not fit in port "
            f"{port.name}, {port.dtype}{port.shape}"
        )


def _check_files(manifest: Manifest) -> None:
    listed = sorted(file.path for file in manifest.files if file.path not in OPTIONAL_FILES)
    if listed != sorted(TENSOR_FILES):
        raise ValueError(
            f"files must list exactly {list(TENSOR_FILES)}, and may list {list(OPTIONAL_FILES)}"
        )
    for file in manifest.files:
        if file.size > MAX_TENSOR_FILE_BYTES:
            raise ValueError(f"{file.path}: larger than the limit of {MAX_TENSOR_FILE_BYTES} bytes")
    if not manifest.artefacts:
        raise ValueError("artefacts is empty; a bundle must hold the step in at least one format")
    for key, artefact in manifest.artefacts.items():
        _check_artefact(key, artefact)
    files = [*manifest.files, *(f for a in manifest.artefacts.values() for f in a.files)]
    if len(files) > MAX_FILES:
        raise ValueError(f"{len(files)} files, at most {MAX_FILES} are allowed")
    for file in files:
        _check_file(file)
    # Compared without case, for bundles are also unpacked on file systems that ignore it.
    counts = Counter(file.path.casefold() for file in files)
    if repeated := [path for path, count in counts.items() if count > 1]:
        raise ValueError(f"files listed more than once: {repeated[:20]}")


def _check_artefact(key: str, artefact: Artefact) -> None:
    if ARTEFACTS.get(key) != (artefact.format, artefact.flavour):
        raise ValueError(
            f"artefact {key[:80]!r} with format {artefact.format!r} and flavour "
            f"{artefact.flavour!r}; known are {ARTEFACTS}"
        )
    check_path(artefact.entry)
    directory = artefact.entry.split("/")[0]
    if not artefact.files:
        raise ValueError(f"artefact {key}: lists no files")
    if outside := [f.path for f in artefact.files if not f.path.startswith(directory + "/")]:
        raise ValueError(f"artefact {key}: {outside[0][:80]!r} is not below {directory!r}")
    entry = artefact.entry
    if not any(file.path == entry or file.path.startswith(entry + "/") for file in artefact.files):
        raise ValueError(f"artefact {key}: none of its files belongs to its entry {entry!r}")


def _check_file(file: File) -> None:
    check_path(file.path)
    if not 0 <= file.size <= MAX_FILE_BYTES:
        raise ValueError(f"{file.path}: size {file.size} is outside 0..{MAX_FILE_BYTES}")
    if not _SHA256.fullmatch(file.sha256):
        raise ValueError(f"{file.path}: {file.sha256[:80]!r} is not a SHA-256 in lower-case hex")
