"""Results on standard output, words for people on standard error."""

import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class TextStream(Protocol):
    """What is asked of a stream; `io.StringIO` and `sys.stderr` both have it."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...
    def isatty(self) -> bool: ...


class Output:
    """Where a command says things.

    A command calls `note` for what a person wants to see on the way and `result` once at its end.
    With `--json` standard output holds exactly one JSON document, whatever else is printed.

    Args:
        as_json: Whether the result is wanted by a machine.
        results: Stream for results, standard output if None.
        notes: Stream for notes, standard error if None.
    """

    def __init__(
        self, *, as_json: bool, results: TextStream | None = None, notes: TextStream | None = None
    ) -> None:
        self.as_json = as_json
        self.results = sys.stdout if results is None else results
        self.notes = sys.stderr if notes is None else notes

    def note(self, text: str) -> None:
        """Tell a person something on the way; a line on standard error."""
        print(text, file=self.notes, flush=True)

    def result(self, data: Mapping[str, Any], text: str) -> None:
        """Give the command's result: `data` as JSON with `--json`, `text` otherwise."""
        if self.as_json:
            print(json.dumps(to_jsonable(data), indent=2), file=self.results, flush=True)
        else:
            print(_writable(text, self.results), file=self.results, flush=True)


_PLAIN = str.maketrans({"µ": "u", "×": "x", "→": "->", "…": "...", "·": "-", "–": "-"})


def _writable(text: str, stream: TextStream) -> str:
    """Write otherwise what a stream's encoding lacks, as on a robot with the locale C."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text


def to_jsonable(value: Any) -> Any:
    """Turn a value into what JSON can hold: NaN and infinities, which it cannot, become null."""
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    # Arrays and scalars of NumPy and JAX, without importing either.
    if hasattr(value, "tolist"):
        return to_jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] = ()
) -> str:
    """Lay out a table in columns: the first to the left, numbers to the right.

    Args:
        headers: One title for each column.
        rows: Cells, each row as long as `headers`.
        words: Titles of further columns that go to the left.

    Returns:
        Lines joined by newlines, with a rule under the titles.
    """
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]

    left = [i == 0 or title in words for i, title in enumerate(headers)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if to_the_left else cell.rjust(width)
            for cell, width, to_the_left in zip(cells, widths, left, strict=True)
        ]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(headers), rule, *(line(row) for row in rows)])


def microseconds(seconds: float | int) -> str:
    """Write a duration in microseconds: `23.4 us`."""
    return f"{seconds * 1e6:.1f} us"
