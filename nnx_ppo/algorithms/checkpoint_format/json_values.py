"""Settings as JSON and back: dataclasses, enumerations, functions and containers."""

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnx_ppo.algorithms.checkpoint_format.import_path import import_path_of, resolve_import_path

# A JSON object with one of these keys alone stands for something JSON does not have.
TUPLE, MAPPING, NUMBER = "tuple", "mapping", "number"
CALLABLE, DATACLASS, ENUM = "callable", "dataclass", "enum"


class NotRecordable(ValueError):
    """A value has no form in JSON; the message says which and where."""


def to_json_value(value: Any, where: str) -> Any:
    """Turns a value into what ``json.dumps`` accepts.

    Args:
        value: None, a bool, number, string, list, tuple, dict, enumeration member, dataclass, or
            an importable function or class; containers of such.
        where: Name of the value for the error message.

    Raises:
        NotRecordable: the value is, or holds, something else.
    """
    if value is None or isinstance(value, bool | str):
        return value if not isinstance(value, enum.Enum) else _enum_to_json(value, where)
    if isinstance(value, enum.Enum):
        return _enum_to_json(value, where)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return to_json_value(value.item(), where)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {NUMBER: str(value)}
    if isinstance(value, list):
        return [to_json_value(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {TUPLE: [to_json_value(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return _mapping_to_json(value, where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: to_json_value(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init
        }
        return {DATACLASS: _path(type(value), where), "fields": fields}
    if callable(value):
        return {CALLABLE: _path(value, where)}
    raise NotRecordable(
        f"{where} is a {type(value).__name__}, which cannot be written to a checkpoint; use "
        f"numbers, strings, lists, tuples, dicts, dataclasses, enumerations or functions of a "
        f"module"
    )


def from_json_value(value: Any) -> Any:
    """Rebuilds what ``to_json_value`` recorded.

    Raises:
        ValueError: something is not as it was recorded, such as a class with other fields.
        ImportError, AttributeError: a class or function is not where it was.
    """
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    keys = set(value)
    if keys == {TUPLE}:
        return tuple(from_json_value(item) for item in value[TUPLE])
    if keys == {NUMBER}:
        return float(value[NUMBER])
    if keys == {MAPPING}:
        return {from_json_value(key): from_json_value(item) for key, item in value[MAPPING]}
    if keys == {CALLABLE}:
        return _resolve(value[CALLABLE], callable, "a function or class")
    if keys == {ENUM, "value"}:
        cls = _resolve(value[ENUM], _is_enum, "an enumeration")
        return cls(value["value"])
    if keys == {DATACLASS, "fields"}:
        cls = _resolve(value[DATACLASS], _is_dataclass_type, "a dataclass")
        fields = {name: from_json_value(item) for name, item in value["fields"].items()}
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"{value[DATACLASS]} does not take the recorded fields") from error
    return {key: from_json_value(item) for key, item in value.items()}


def _mapping_to_json(value: Mapping[Any, Any], where: str) -> Any:
    plain = all(isinstance(key, str) for key in value)
    reserved = {TUPLE, MAPPING, NUMBER, CALLABLE, DATACLASS, ENUM}
    items = [(key, to_json_value(item, f"{where}[{key!r}]")) for key, item in value.items()]
    if plain and not reserved & set(value):
        return dict(items)
    return {MAPPING: [[to_json_value(key, f"a key of {where}"), item] for key, item in items]}


def _enum_to_json(value: enum.Enum, where: str) -> Any:
    return {ENUM: _path(type(value), where), "value": to_json_value(value.value, where)}


def _path(thing: Any, where: str) -> str:
    path = import_path_of(thing)
    if path is None:
        raise NotRecordable(
            f"{where} needs {thing!r}, which cannot be imported by name; define it at the top "
            f"level of a module instead of inside a function or as a lambda"
        )
    return path


def _resolve(path: Any, accepts: Callable[[Any], bool], expected: str) -> Any:
    found = resolve_import_path(path)
    if not accepts(found):
        raise ValueError(f"{path} is {found!r}, not {expected}")
    return found


def _is_enum(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, enum.Enum)


def _is_dataclass_type(thing: Any) -> bool:
    return isinstance(thing, type) and dataclasses.is_dataclass(thing)
