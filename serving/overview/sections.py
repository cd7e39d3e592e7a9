"""The forms that an overview is made of, and how numbers and names are written in them."""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from typing import Literal

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that move the cursor, turn text around or cannot be seen."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """Labels with a value each."""

    title: str
    rows: list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Note:
    """One thing to know or do."""

    label: str
    text: str
    level: Literal["fine", "attention"] = "fine"
    """`attention` where something that a robot needs is missing or contradictory."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under column titles."""

    title: str
    headers: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: frozenset[str] = frozenset()
    """Titles of columns beside the first that hold words, and so go to the left."""


def printable(text: object) -> str:
    r"""Returns text in which everything can be seen: hidden characters become their escapes.

    A bundle comes from somewhere else, and its names are shown on terminals that obey control
    characters and on pages that obey direction marks.

    >>> printable("hip\x1b[2J")
    'hip\\x1b[2J'
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _HIDDEN
        else character
        for character in str(text)
    )


def byte_size(n_bytes: float | int) -> str:
    """Writes a size: `12.3 kB`.

    >>> [byte_size(n) for n in (12, 1234, 5_600_000)]
    ['12 B', '1.2 kB', '5.6 MB']
    """
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def duration(microseconds: float) -> str:
    """Writes a duration with three figures and the unit that suits it.

    >>> [duration(us) for us in (0.5, 23.44, 1234.0, 2.5e6)]
    ['0.500 µs', '23.4 µs', '1.23 ms', '2.50 s']
    """
    for unit, scale in (("µs", 1.0), ("ms", 1e3)):
        if microseconds < 999.5 * scale:
            return f"{_three_figures(microseconds / scale)} {unit}"
    return f"{_three_figures(microseconds / 1e6)} s"


def _three_figures(value: float) -> str:
    if value <= 0:
        return "0"
    # Rounded first: 0.9996 has three figures as 1.00.
    digits = max(0, 2 - math.floor(math.log10(float(f"{value:.2e}"))))
    return f"{value:.{min(digits, 3)}f}"


def error_text(error: float) -> str:
    """Writes an error: `1.9e-06`, `0` or `infinite`."""
    if error == 0:
        return "0"
    return f"{error:.1e}" if math.isfinite(error) else "infinite"


def plural(count: int, word: str) -> str:
    """Writes a count with its word: `1 tensor`, `2,000 tensors`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def number_text(value: float) -> str:
    """Writes a number of the metadata with all its digits, whole ones without a fraction."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else repr(value)


def shape_text(shape: list[int]) -> str:
    """Writes a port's shape with its batch axis: `[batch, 8]`."""
    return f"[{', '.join(['batch', *map(str, shape)])}]"
