"""A plot of step times that shows their tails: which share of the steps took longer than a time.

Both axes are logarithmic, so that the one step in ten thousand is as visible as the median.
"""

import math
from collections.abc import Callable, Mapping
from xml.etree import ElementTree

import numpy as np

WIDTH, HEIGHT = 760.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 72.0, 190.0, 24.0, 56.0
COLOURS = ("#0b62a4", "#c8501e", "#1b7f5c", "#a8306f", "#8a6d00", "#5a5a5a", "#0098a8", "#6a3d9a")
"""Apart from each other for the colour-blind too, and in print."""
DASHES = ("", "7 4", "2 3")


def latency_plot(times_s: Mapping[str, np.ndarray], title: str) -> bytes:
    """Draw, for each name, the share of its steps that took longer than a time.

    Args:
        times_s: Step times in seconds by name, none empty.
        title: Stands above the plot.

    Returns:
        A picture in SVG that is complete in itself.
    """
    times_us = {name: np.sort(np.maximum(times, 1e-9)) * 1e6 for name, times in times_s.items()}
    low = math.floor(math.log10(min(times[0] for times in times_us.values())))
    high = max(math.ceil(math.log10(max(times[-1] for times in times_us.values()))), low + 1)
    decades = max(1, math.ceil(math.log10(max(len(times) for times in times_us.values()))))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(time_us: float) -> float:
        return LEFT + plot_width * (math.log10(time_us) - low) / (high - low)

    def y(share: float) -> float:
        return TOP + plot_height * -math.log10(share) / decades

    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}",
            "font-family": "sans-serif",
            "font-size": "12",
            "role": "img",
        },
    )
    ElementTree.SubElement(root, "title").text = title
    _add(root, "rect", width=WIDTH, height=HEIGHT, fill="#ffffff")
    _text(root, title, LEFT, TOP - 8, weight="bold")
    for power in range(low, high + 1):
        at = x(10.0**power)
        _add(root, "line", x1=at, x2=at, y1=TOP, y2=TOP + plot_height, stroke="#d9d9d9")
        _text(root, _time(power), at, HEIGHT - BOTTOM + 18, anchor="middle")
    for power in range(decades + 1):
        at = y(10.0**-power)
        _add(root, "line", x1=LEFT, x2=LEFT + plot_width, y1=at, y2=at, stroke="#d9d9d9")
        _text(root, _share(power), LEFT - 8, at + 4, anchor="end")
    _text(root, "time of a step", LEFT + plot_width / 2, HEIGHT - 14, anchor="middle")
    _text(root, "steps that took longer", 16.0, TOP + plot_height / 2, anchor="middle", turned=True)
    for index, (name, times) in enumerate(times_us.items()):
        style = {
            "fill": "none",
            "stroke": COLOURS[index % len(COLOURS)],
            "stroke-width": "2",
            "stroke-dasharray": DASHES[index // len(COLOURS) % len(DASHES)] or "none",
        }
        _add(root, "polyline", points=_steps(times, x, y), **style)
        at = TOP + 14 + 20.0 * index
        begin = WIDTH - RIGHT + 14
        _add(root, "line", x1=begin, x2=begin + 22, y1=at - 4, y2=at - 4, **style)
        _text(root, name, begin + 28, at)
    return ElementTree.tostring(root, encoding="utf-8")


def _steps(times_us: np.ndarray, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """Return the corners of the curve; of many equal pixels one is drawn."""
    count = len(times_us)
    corners = [f"{x(times_us[0]):.1f},{y(1.0):.1f}"]
    last = None
    for index, time_us in enumerate(times_us):
        # Of `count` steps, this many took at least this long.
        corner = f"{x(time_us):.1f},{y((count - index) / count):.1f}"
        if corner != last:
            corners.append(corner)
        last = corner
    return " ".join(corners)


def _time(power: int) -> str:
    for unit, start in (("s", 6), ("ms", 3), ("us", 0)):
        if power >= start:
            return f"{10 ** (power - start):g} {unit}"
    return f"{10.0 ** (power + 3):g} ns"


def _share(power: int) -> str:
    return f"{100.0 / 10**power:g} %"


def _add(parent: ElementTree.Element, tag: str, **attributes: object) -> None:
    named = {
        key.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else str(value)
        for key, value in attributes.items()
    }
    ElementTree.SubElement(parent, tag, named)


def _text(
    parent: ElementTree.Element,
    text: str,
    x: float,
    y: float,
    *,
    anchor: str = "start",
    weight: str = "normal",
    turned: bool = False,
) -> None:
    attributes = {"text-anchor": anchor, "font-weight": weight, "fill": "#222222"}
    element = ElementTree.SubElement(parent, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}"})
    element.attrib.update(attributes)
    if turned:
        element.set("transform", f"rotate(-90 {x:.1f} {y:.1f})")
    element.text = text
