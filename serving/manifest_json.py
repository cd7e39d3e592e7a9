"""Reading and writing `manifest.json`.

`parse_manifest` is the only way in. It refuses, in this order: a file above `MAX_MANIFEST_BYTES`,
text that is not JSON or repeats a key, a format version other than `FORMAT_VERSION` (checked before
any other field, so a newer bundle is named as such even if all its fields are new), unknown or
missing fields, and whatever `serving.manifest_checks` lists.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from serving.errors import BundleError
from serving.manifest import FORMAT_VERSION, MANIFEST_FILE, Manifest
from serving.manifest_checks import check_manifest

MAX_MANIFEST_BYTES = 8 * 1024 * 1024


def parse_manifest(data: bytes, file: str | Path = MANIFEST_FILE) -> Manifest:
    """Reads a manifest and checks all of it.

    Args:
        data: the file's content.
        file: its name, for messages.

    Raises:
        BundleError: naming the file and the first reason found.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise BundleError(file, f"larger than the limit of {MAX_MANIFEST_BYTES} bytes")
    raw = _parse_json(data, file)
    _check_version(raw, file)
    try:
        manifest = msgspec.convert(raw, Manifest)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise BundleError(file, f"does not have the fields of format 1: {error}") from error
    check_manifest(manifest, file)
    return manifest


def encode_manifest(manifest: Manifest, file: str | Path = MANIFEST_FILE) -> bytes:
    """Writes a manifest as indented JSON, numbers at full precision, and checks it by reading it.

    Raises:
        BundleError: if the manifest would be refused when read, or holds what JSON cannot say.
    """
    _refuse_non_finite(msgspec.to_builtins(manifest), "manifest", file)
    try:
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BundleError(file, f"cannot be written as JSON: {error}") from error
    parse_manifest(data, file)
    return data


def _parse_json(data: bytes, file: str | Path) -> dict[str, Any]:
    try:
        raw = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
        # An escaped half of a surrogate pair is text that can be neither printed nor a file name.
        json.dumps(raw, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BundleError(file, f"not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BundleError(file, f"expected a JSON object, got {type(raw).__name__}")
    return raw


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Two readers may disagree on which of two equal keys counts, so neither is taken.
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"repeated key {next(key for key in keys if keys.count(key) > 1)!r}")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _check_version(raw: dict[str, Any], file: str | Path) -> None:
    version = raw.get("format_version")
    if type(version) is not int:
        raise BundleError(file, "has no integer format_version, so it is no manifest of a bundle")
    if version > FORMAT_VERSION:
        raise BundleError(
            file,
            f"format version {version} is newer than {FORMAT_VERSION}, the newest this version of "
            "nnx-ppo-deploy reads; install a newer one or export the policy again with this one",
        )
    if version < FORMAT_VERSION:
        raise BundleError(file, f"format version {version} is unknown; expected {FORMAT_VERSION}")


def _refuse_non_finite(value: Any, where: str, file: str | Path) -> None:
    # JSON has no NaN, and the encoder would write null in its place without a word.
    if isinstance(value, float) and not math.isfinite(value):
        raise BundleError(file, f"{where} is {value}; only finite numbers can be stored")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_non_finite(item, f"{where}.{key}", file)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{where}.{index}", file)
