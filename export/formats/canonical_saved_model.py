"""Make the files of a SavedModel the same whenever the same step is written.

TensorFlow numbers functions throughout a process, keeps them in an order of its own, and adds a
fingerprint with a random id.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2

_FINGERPRINT = "fingerprint.pb"


def make_canonical(directory: Path) -> None:
    """Rewrite the SavedModel in `directory`: functions by number from 0, in that order.

    The fingerprint is dropped, since its checksum is that of the file before; TensorFlow does
    without, and a bundle's manifest has the SHA-256 of every file.
    """
    file = directory / "saved_model.pb"
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString(file.read_bytes())
    for graph in proto.meta_graphs:
        library = graph.graph_def.library
        functions = sorted(library.function, key=lambda function: _number(function.signature.name))
        names = [function.signature.name for function in functions]
        new_names = {old: f"{_base(old)}_{index}" for index, old in enumerate(names)}
        del library.function[:]
        library.function.extend(functions)
        _rename(graph, new_names)
    file.write_bytes(proto.SerializeToString(deterministic=True))
    (directory / _FINGERPRINT).unlink(missing_ok=True)


def _number(name: str) -> tuple[int, str]:
    """Return the number at the end of a name, which grows in the order of tracing."""
    found = re.search(r"_(\d+)$", name)
    return (int(found.group(1)) if found else -1), name


def _base(name: str) -> str:
    return re.sub(r"(_\d+)+$", "", name)


def _rename(message: Any, new_names: dict[str, str]) -> None:
    """Replace each text of `message` that is a function's name, wherever it stands."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _rename_map(field, value, new_names)
        elif field.message_type is not None:
            for item in value if _is_repeated(value) else [value]:
                _rename(item, new_names)
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            if _is_repeated(value):
                value[:] = [_renamed(item, new_names) for item in value]
            else:
                setattr(message, field.name, _renamed(value, new_names))


def _rename_map(field: Any, entries: Any, new_names: dict[str, str]) -> None:
    holds_messages = field.message_type.fields_by_name["value"].message_type is not None
    for key in list(entries):
        if holds_messages:
            _rename(entries[key], new_names)
        else:
            entries[key] = _renamed(entries[key], new_names)
        new_key = _renamed(key, new_names)
        if new_key == key:
            continue
        if holds_messages:
            entries[new_key].CopyFrom(entries[key])
        else:
            entries[new_key] = entries[key]
        del entries[key]


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "extend")


def _renamed(text: Any, new_names: dict[str, str]) -> Any:
    if isinstance(text, bytes):
        new = new_names.get(text.decode("utf-8", "replace"))
        return text if new is None else new.encode()
    return new_names.get(text, text)
