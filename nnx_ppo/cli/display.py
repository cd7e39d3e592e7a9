"""Sections for people: with colour and boxes on a terminal, as plain text everywhere else."""

import importlib.util
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.output import Output, table

if TYPE_CHECKING:
    from serving.overview import Facts, Note, Table, Verdict

    Section = Verdict | Facts | Table | Sequence[Note]
else:
    Section = Any

_COLOURS = {"passed": "green", "failed": "red", "unverified": "yellow"}


def show(output: Output, data: Mapping[str, Any], sections: Sequence[Section]) -> None:
    """Give a command's result: `data` with `--json`, else the sections.

    A terminal gets colours and boxes if rich is installed, which a robot need not have; a pipe or
    a file gets text.
    """
    on_terminal = output.results.isatty() and importlib.util.find_spec("rich") is not None
    if output.as_json or not on_terminal:
        output.result(data, as_text(sections))
    else:
        _show_rich(output, sections)


def as_text(sections: Sequence[Section]) -> str:
    """Lay out sections in plain text, empty ones left out."""
    return "\n\n".join(text for section in sections if (text := _text_of(section)))


def _text_of(section: Section) -> str:
    from serving.overview import Facts, Table, Verdict

    if isinstance(section, Verdict):
        return "\n".join([section.headline, *(f"  {sentence}" for sentence in section.details)])
    if isinstance(section, Facts):
        return _titled(section.title, _aligned(section.rows)) if section.rows else ""
    if isinstance(section, Table):
        if not section.rows:
            return ""
        return _titled(section.title, table(section.headers, section.rows, words=section.words))
    rows = [
        (note.label, ("! " if note.level == "attention" else "") + note.text) for note in section
    ]
    return _titled("What a session has to do", _aligned(rows))


def _titled(title: str, text: str) -> str:
    return f"{title}\n\n{textwrap.indent(text, '  ')}"


def _aligned(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def _show_rich(output: Output, sections: Sequence[Section]) -> None:
    from rich.console import Console

    console = Console(file=output.results, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]
    for section in sections:
        drawn = _drawn(section)
        if drawn is not None:
            console.print(drawn)
            console.print()


def _drawn(section: Section) -> Any:
    """Return what rich prints; names go in as text, so that `[bold]` in one stays what it is."""
    from rich.panel import Panel
    from rich.table import Table as Grid
    from rich.text import Text

    from serving.overview import Facts, Table, Verdict

    if isinstance(section, Verdict):
        colour = _COLOURS[section.state]
        body = Text(section.headline, style=f"bold {colour}")
        for sentence in section.details:
            body.append(f"\n{sentence}", style="default not bold")
        return Panel(body, border_style=colour, expand=False)
    if isinstance(section, Table):
        if not section.rows:
            return None
        grid = Grid(title=Text(section.title, style="bold"), title_justify="left", pad_edge=False)
        for index, header in enumerate(section.headers):
            left = index == 0 or header in section.words
            grid.add_column(Text(header), justify="left" if left else "right", overflow="fold")
        for row in section.rows:
            grid.add_row(*(Text(cell, style=_style(cell)) for cell in row))
        return grid
    notes = not isinstance(section, Facts)
    title = "What a session has to do" if notes else section.title
    grid = Grid.grid(padding=(0, 2))
    if not notes and not section.rows:
        return None
    grid.title, grid.title_justify, grid.title_style = title, "left", "bold"
    rows = (
        [(n.label, n.text, n.level) for n in section]
        if notes
        else [(label, value, "fine") for label, value in section.rows]
    )
    for label, value, level in rows:
        style = "yellow" if level == "attention" else ""
        grid.add_row(Text(label, style="dim"), Text(value, style=style))
    return grid


def _style(cell: str) -> str:
    if cell == "pass":
        return "green"
    return "bold red" if cell.startswith("FAIL") else ""
