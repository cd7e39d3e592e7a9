"""Command-line options made from a configuration dataclass: one option for each field.

The field's docstring is the option's help and its annotation decides how the text is read, so that
an option cannot say anything else than the dataclass does.
"""

import argparse
import ast
import dataclasses
import enum
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any

NONE_WORDS = ("none", "null")
TRUE_WORDS = ("true", "yes", "on")
FALSE_WORDS = ("false", "no", "off")


def add_config_options(
    parser: argparse._ActionsContainer,
    config_class: type,
    *,
    prefix: str = "",
    leave_out: Collection[str] = (),
) -> None:
    """Add an option for each field of a dataclass.

    An option that is not given leaves nothing in the namespace; `config_overrides` collects those
    that were.

    Args:
        parser: Parser or argument group.
        config_class: A dataclass whose fields all have defaults.
        prefix: Put before each option, `eval` for `--eval-n-envs`.
        leave_out: Fields without an option.
    """
    annotations = typing.get_type_hints(config_class)
    help_texts = field_docstrings(config_class)
    for field in dataclasses.fields(config_class):
        if field.name in leave_out:
            continue
        option = "-".join(part for part in (prefix, *field.name.split("_")) if part)
        parse, metavar = _reader(annotations[field.name])
        default = "" if field.default is dataclasses.MISSING else f" [{_show(field.default)}]"
        settings: dict[str, Any] = {
            "dest": _destination(prefix, field.name),
            "default": argparse.SUPPRESS,
            "help": (help_texts.get(field.name, "") + default).strip().replace("%", "%%"),
        }
        if annotations[field.name] is bool:
            parser.add_argument(f"--{option}", action=argparse.BooleanOptionalAction, **settings)
        else:
            parser.add_argument(f"--{option}", type=parse, metavar=metavar, **settings)


def config_overrides(
    arguments: argparse.Namespace, config_class: type, *, prefix: str = ""
) -> dict[str, Any]:
    """Collect the fields that were given on the command line, by field name."""
    given = vars(arguments)
    return {
        field.name: given[_destination(prefix, field.name)]
        for field in dataclasses.fields(config_class)
        if _destination(prefix, field.name) in given
    }


def field_docstrings(config_class: type) -> dict[str, str]:
    """Read the string under each field of a dataclass, joined into one line.

    Example:
        >>> import nnx_ppo.cli.config_options as module
        >>> field_docstrings(module._Reader)["metavar"]
        'What help shows in place of the value.'
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(config_class)))
    (definition,) = tree.body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node, following in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[node.target.id] = " ".join(following.value.value.replace("``", "").split())
    return found


class _Reader(typing.NamedTuple):
    parse: Callable[[str], Any]
    """Turns the option's text into the field's value."""
    metavar: str
    """What help shows in place of the value."""


def _reader(annotation: Any) -> _Reader:
    """Choose how the text for one annotation is read."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(typing.get_args(annotation))
    if origin in (tuple, list, Sequence):
        item = next((a for a in typing.get_args(annotation) if a is not Ellipsis), str)
        return _sequence_reader(_reader(item))
    if annotation is bool:
        return _Reader(_parse_bool, "BOOL")
    if annotation in (int, float, str):
        return _Reader(_parse_int if annotation is int else annotation, annotation.__name__.upper())
    if isinstance(annotation, type) and issubclass(annotation, enum.Flag):
        return _flag_reader(annotation)
    raise TypeError(f"no command-line option can be made for a field of type {annotation!r}")


def _union_reader(members: tuple[Any, ...]) -> _Reader:
    optional = type(None) in members
    # Words before numbers, whole numbers before others: what fits the narrower type means it.
    narrow_first = [kind for kind in (bool, int, float) if kind in members]
    others = [m for m in members if m not in (bool, int, float, type(None))]
    readers = [_reader(member) for member in [*narrow_first, *others]]

    def parse(text: str) -> Any:
        if optional and text.lower() in NONE_WORDS:
            return None
        for reader in readers:
            try:
                return reader.parse(text)
            except (ValueError, argparse.ArgumentTypeError):
                continue
        raise argparse.ArgumentTypeError(f"{text!r} is not {metavar}")

    shown = [reader.metavar for reader in readers]
    if int in members and float in members:
        shown.remove("INT")
    metavar = "|".join(shown + (["none"] if optional else []))
    return _Reader(parse, metavar)


def _sequence_reader(item: _Reader) -> _Reader:
    def parse(text: str) -> tuple[Any, ...]:
        return tuple(item.parse(part.strip()) for part in text.split(",") if part.strip())

    return _Reader(parse, f"{item.metavar},...")


def _flag_reader(flags: type[enum.Flag]) -> _Reader:
    def parse(text: str) -> enum.Flag:
        value = flags(0)
        for name in text.replace("|", ",").split(","):
            try:
                value |= flags[name.strip().upper()]
            except KeyError:
                known = ", ".join(flags.__members__)
                raise argparse.ArgumentTypeError(
                    f"{name.strip()!r} is not one of {known}"
                ) from None
        return value

    return _Reader(parse, "NAME,...")


def _parse_int(text: str) -> int:
    """Read an integer, also as it is written for large ones: `512_000`, `2e6`."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(number)


def _parse_bool(text: str) -> bool:
    if text.lower() in TRUE_WORDS:
        return True
    if text.lower() in FALSE_WORDS:
        return False
    raise argparse.ArgumentTypeError(
        f"{text!r} is not one of {', '.join(TRUE_WORDS + FALSE_WORDS)}"
    )


def _show(value: Any) -> str:
    if isinstance(value, enum.Flag):
        return value.name or "NONE"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _destination(prefix: str, field: str) -> str:
    return f"{prefix}_{field}" if prefix else field
