"""Names, literals and comments of the C files: safe to write there whatever a port is called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from export.errors import ExportError
from serving.manifest import Port

C_TYPES = {
    "bool": "bool",
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{n}": f"{sign}int{n}_t" for sign in ("", "u") for n in (8, 16, 32, 64)},
}
"""Element types that C99 has."""

# Of C and of C++, whose programs include the header too.
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "alignas alignof and and_eq asm auto bitand bitor bool break case catch char "
        "class compl concept const const_cast consteval constexpr constinit continue "
        "co_await co_return co_yield decltype default delete do double dynamic_cast else "
        "enum explicit export extern false float for friend goto if inline int long "
        "mutable namespace new noexcept not not_eq nullptr operator or or_eq private "
        "protected public register reinterpret_cast requires restrict return short signed "
        "sizeof static static_assert static_cast struct switch template this thread_local "
        "throw true try typedef typeid typename union unsigned using virtual void "
        "volatile wchar_t while xor xor_eq ",
    )
)


def field_names(ports: Sequence[Port]) -> dict[str, str]:
    """Return port name → C identifier, each once.

    All but letters, digits and underscores becomes an underscore, several become one, and names
    that are the same then are numbered in the order of the ports.

    >>> field_names([Port(n, [], [1], "float32") for n in ("obs.arm-L", "obs.arm.L", "int")])
    {'obs.arm-L': 'obs_arm_L', 'obs.arm.L': 'obs_arm_L_2', 'int': 'int_'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for port in ports:
        plain = re.sub(r"[^A-Za-z0-9]+", "_", port.name).lstrip("_") or "port"
        if plain[0].isdigit():
            plain = f"port_{plain}"
        if plain in _KEYWORDS:
            plain = f"{plain}_"
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name)
        names[port.name] = name
    return names


def c_type(port: Port) -> str:
    """Return the C type of a port's elements.

    Raises:
        ExportError: C99 has none.
    """
    if port.dtype not in C_TYPES:
        raise ExportError(
            f"{port.name} is {port.dtype}, for which C99 has no type, so the format c cannot be "
            f"written; make it float32, or leave c out of the formats. Known: {sorted(C_TYPES)}"
        )
    return C_TYPES[port.dtype]


def declaration(port: Port, name: str) -> str:
    """Return a declaration such as `float obs[2][3]`."""
    return f"{c_type(port)} {name}{''.join(f'[{size}]' for size in port.shape)}"


def literal(value: Any, dtype: str) -> str:
    """Return one number as a constant of C99, exact to the last bit."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return "true" if value else "false"
    if kind.kind == "f":
        number = float(value)
        if not np.isfinite(number):
            return "NAN" if np.isnan(number) else ("INFINITY" if number > 0 else "-INFINITY")
        return f"{number.hex()}{'f' if kind.itemsize == 4 else ''}"
    number = int(value)
    if kind.kind == "u":
        return f"{number}{'ULL' if kind.itemsize == 8 else 'U'}"
    if kind.itemsize == 8:
        # The smallest one is no constant of C: its minus is an operator.
        return f"({number + 1}LL - 1)" if number == -(2**63) else f"{number}LL"
    return f"({number + 1} - 1)" if number == -(2**31) else str(number)


def initializer(values: Any, dtype: str) -> str:
    """Return the initializer of an array, braces within braces; of a scalar without any."""
    array = np.asarray(values)
    if array.ndim == 0:
        return literal(array[()], dtype)
    if array.ndim == 1:
        return "{" + ", ".join(literal(value, dtype) for value in array) + "}"
    return "{" + ",\n ".join(initializer(part, dtype) for part in array) + "}"


def quoted(text: str) -> str:
    """Return a string constant; all that could mean something to a compiler is escaped."""
    plain = re.compile(r"[A-Za-z0-9 _.,:;()\[\]+=-]")
    data = text.encode()
    return '"' + "".join(chr(b) if plain.match(chr(b)) else f"\\{b:03o}" for b in data) + '"'


def comment(text: str) -> str:
    """Return text that can stand in a comment."""
    plain = re.sub(r"[^\x20-\x7e]", "?", text).replace("??", "? ?").replace("\\", "|")
    return plain.replace("*/", "* /").replace("/*", "/ *")
