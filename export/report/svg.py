"""Writing SVG: elements whose attributes and text are escaped, whatever they hold."""

from __future__ import annotations

import unicodedata
from typing import Any

from markupsafe import Markup, escape


def element(tag: str, /, *children: Any, **attributes: Any) -> Markup:
    """Return an element; `_` in an attribute's name becomes `-`, a trailing one is dropped.

    Args:
        tag: Name of the element.
        *children: Markup, or text to escape.
        **attributes: Attributes; None leaves one out, numbers get at most one decimal.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(Markup(name.rstrip("_").replace("_", "-")), _value(value))
        for name, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), written, inner)


def _value(value: Any) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def text_width(text: str, size: float = 13.0) -> float:
    """Return about how wide text is in a proportional font of `size` pixels."""
    ems = sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.56 for c in text)
    return ems * size


def shortened(text: str, width: float, size: float = 13.0) -> str:
    """Return text that fits into `width` pixels, with an ellipsis in its middle if it is cut.

    >>> shortened("a_population_with_a_long_name", 100.0)
    'a_popu…g_name'
    """
    if text_width(text, size) <= width:
        return text
    keep = len(text) - 1
    while (
        keep > 2
        and text_width(text[: keep // 2] + "…" + text[len(text) - (keep - keep // 2) :], size)
        > width
    ):
        keep -= 1
    return text[: keep // 2] + "…" + text[len(text) - (keep - keep // 2) :]
