"""Draw population graphs and the step's data flow as SVG that takes its colours from the page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from markupsafe import Markup

from export.report.layered_layout import Edge, Layout, Point, layered_layout
from export.report.svg import element, shortened, text_width
from serving.overview import printable
from serving.structure import FlowEdge, FlowNode, Graph, Population

HEIGHT, MARGIN = 46.0, 30.0
NARROWEST, WIDEST = 84.0, 190.0
DELAY_CLASSES = 5
"""Delays from this on share one colour; the label tells them apart."""


@dataclasses.dataclass(frozen=True)
class Box:
    """A node: two lines of text and what is shown when it is pointed at."""

    title: str
    subtitle: str
    details: str
    kind: str
    """`population`, `module` or `port`: a class of the style sheet."""


@dataclasses.dataclass(frozen=True)
class Arrow:
    """An edge: how many steps it takes, and what is shown when it is pointed at."""

    source: int
    target: int
    delay: int
    label: str
    details: str


def draw_graph(graph: Graph, name: str) -> Markup:
    """Draw a population graph, with the entries that it reads and gives as boxes of their own.

    Args:
        graph: What the bundle recorded.
        name: Prefix of the drawing's ids, unique on the page.
    """
    index = {population.name: number for number, population in enumerate(graph.populations)}
    boxes = [_population_box(population, graph) for population in graph.populations]
    arrows = [
        Arrow(
            index[edge.source],
            index[edge.target],
            edge.delay_steps,
            str(edge.delay_steps) if edge.delay_steps else "",
            f"{edge.source} → {edge.target}, "
            + (f"delay {edge.delay_steps} steps" if edge.delay_steps else "same step")
            + f", {edge.transform}, {edge.parameters:,} parameters",
        )
        for edge in graph.connections
    ]
    first, last = [], []
    for population in graph.populations:
        if population.input_from is not None:
            first.append(len(boxes))
            boxes.append(_port_box(population.input_from, "input", population.size))
            arrows.append(Arrow(first[-1], index[population.name], 0, "", "read in each step"))
        if population.output_to is not None:
            last.append(len(boxes))
            boxes.append(_port_box(population.output_to, "output", population.size))
            arrows.append(Arrow(index[population.name], last[-1], 0, "", "given in each step"))
    label = (
        f"{len(graph.populations)} populations and {len(graph.connections)} connections; "
        "the table below says the same"
    )
    return _draw(boxes, arrows, first, last, name, label)


def _population_box(population: Population, graph: Graph) -> Box:
    activation = population.activation or "linear"
    remembers = (
        f", past of {population.remembers_steps} steps kept" if population.remembers_steps else ""
    )
    into = [edge for edge in graph.connections if edge.target == population.name]
    out = [edge for edge in graph.connections if edge.source == population.name]
    details = (
        f"{population.name}: {population.size} units, {activation}{remembers}; "
        f"{len(into)} connections in, {len(out)} out"
    )
    return Box(population.name, f"{population.size} · {activation}", details, "population")


def _port_box(key: str, what: str, size: int) -> Box:
    return Box(key, f"{what} · {size}", f"{what} {key}: {size} numbers", "port")


def draw_flow(nodes: Sequence[FlowNode], edges: Sequence[FlowEdge], name: str) -> Markup:
    """Draw the data flow of a step: ports and modules, with carry as edges into the next step."""
    boxes = [_flow_box(node) for node in nodes]
    arrows = [
        Arrow(
            edge.source,
            edge.target,
            1 if edge.carry else 0,
            f"{edge.elements:,}",
            f"{nodes[edge.source].label} → {nodes[edge.target].label}, {edge.elements:,} numbers"
            + (f" kept until the next step: {', '.join(edge.carry)}" if edge.carry else ""),
        )
        for edge in edges
    ]
    first = [n for n, node in enumerate(nodes) if node.role == "observation"]
    last = [n for n, node in enumerate(nodes) if node.role in ("action", "extra output")]
    label = f"Data flow of one step through {len(nodes)} boxes"
    return _draw(boxes, arrows, first, last, name, label)


def _flow_box(node: FlowNode) -> Box:
    if node.role == "module":
        details = (
            f"{node.path or 'network'} ({node.type}): {node.elements:,} parameters, "
            f"{node.operations:,} operations in the step"
        )
        return Box(node.type, node.label, details, "module")
    details = f"{node.role} {node.label}: {node.elements:,} numbers {node.type}"
    subtitle = f"{node.role} · {node.elements:,}"
    return Box(node.label, subtitle, details, "port")


def _draw(
    boxes: list[Box],
    arrows: list[Arrow],
    first: list[int],
    last: list[int],
    name: str,
    label: str,
) -> Markup:
    sizes = [(_width(box), HEIGHT) for box in boxes]
    edges = [Edge(arrow.source, arrow.target, arrow.delay == 0) for arrow in arrows]
    layout = layered_layout(sizes, edges, first, last)
    loops = any(arrow.source == arrow.target for arrow in arrows)
    top = MARGIN / 2 + (26.0 if loops else 0.0)
    width, height = layout.width + 2 * MARGIN, layout.height + top + MARGIN / 2
    taken = [
        (x + MARGIN - w / 2, y + top - h / 2, x + MARGIN + w / 2, y + top + h / 2)
        for (x, y), (w, h) in zip(layout.centers, sizes, strict=True)
    ]
    lines, labels = [], []
    for number, arrow in enumerate(arrows):
        points = [(x + MARGIN, y + top) for x, y in layout.routes[number]]
        if arrow.source == arrow.target:
            points = _loop(taken[arrow.source], _loops_before(arrows, number))
        curve = _Curve(points, number_of_loop=arrow.source == arrow.target)
        lines.append(_line(arrow, curve, layout.backward[number], name))
        if arrow.label:
            labels.append(_label(arrow, curve, taken, layout.backward[number]))
    nodes = [_node(box, number, taken[number], sizes[number]) for number, box in enumerate(boxes)]
    return element(
        "svg",
        element("title", label),
        _markers(name),
        element("g", *lines, class_="edges"),
        element("g", *nodes, class_="nodes"),
        element("g", *labels, class_="labels"),
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        class_="graph",
        id=name,
        role="group",
        aria_label=label,
        style=f"min-width:{min(width, max(320.0, width * 0.75)):.0f}px",
    )


def _width(box: Box) -> float:
    wanted = max(text_width(box.title, 15.0), text_width(box.subtitle, 11.5)) + 26.0
    return min(max(wanted, NARROWEST), WIDEST)


def _loops_before(arrows: list[Arrow], number: int) -> int:
    """Return how many loops at the same node come before this one; each is drawn further out."""
    node = arrows[number].source
    return sum(arrow.source == arrow.target == node for arrow in arrows[:number])


def _loop(box: tuple[float, float, float, float], place: int) -> list[Point]:
    left, top, right, _ = box
    reach = 9.0 + 7.0 * min(place, 2)
    middle = (left + right) / 2
    return [(middle + reach, top), (middle - reach, top)]


class _Curve:
    """A path of cubic curves that is level at every point it passes."""

    def __init__(self, points: list[Point], *, number_of_loop: bool) -> None:
        self.segments: list[tuple[Point, Point, Point, Point]] = []
        if number_of_loop:
            (x0, y0), (x1, y1) = points
            reach = 2.2 * abs(x0 - x1)
            self.segments.append(
                ((x0, y0), (x0 + 10.0, y0 - reach), (x1 - 10.0, y1 - reach), (x1, y1))
            )
            return
        for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
            if abs(x1 - x0) < 1.0 and len(points) == 2:
                # Both ends on the right side of one column: bend out and back.
                bend = 22.0 + 0.10 * abs(y1 - y0)
                self.segments.append(((x0, y0), (x0 + bend, y0), (x1 + bend, y1), (x1, y1)))
                continue
            half = (x1 - x0) * 0.45
            if abs(half) < 14.0:
                half = math.copysign(14.0, half)
            self.segments.append(((x0, y0), (x0 + half, y0), (x1 - half, y1), (x1, y1)))

    @property
    def path(self) -> str:
        """The `d` attribute."""
        (start, *_), *_ = self.segments
        parts = [f"M{start[0]:.1f} {start[1]:.1f}"]
        for _, (ax, ay), (bx, by), (x, y) in self.segments:
            parts.append(f"C{ax:.1f} {ay:.1f} {bx:.1f} {by:.1f} {x:.1f} {y:.1f}")
        return "".join(parts)

    def at(self, place: float) -> Point:
        """Return the point at `place` from 0 to 1."""
        scaled = place * len(self.segments)
        which = min(int(scaled), len(self.segments) - 1)
        t = scaled - which
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        segment = self.segments[which]
        return (
            sum(w * p[0] for w, p in zip(weights, segment, strict=True)),
            sum(w * p[1] for w, p in zip(weights, segment, strict=True)),
        )


def _class_of(arrow: Arrow, backward: bool) -> str:
    turned = " back" if backward and arrow.delay else ""
    return f"d{min(arrow.delay, DELAY_CLASSES - 1)}{turned} n{arrow.source} n{arrow.target}"


def _line(arrow: Arrow, curve: _Curve, backward: bool, name: str) -> Markup:
    delay = min(arrow.delay, DELAY_CLASSES - 1)
    return element(
        "path",
        element("title", printable(arrow.details)),
        d=curve.path,
        class_=f"edge {_class_of(arrow, backward)}",
        marker_end=f"url(#{name}-a{delay})",
    )


def _label(
    arrow: Arrow,
    curve: _Curve,
    taken: list[tuple[float, float, float, float]],
    backward: bool,
) -> Markup:
    """Place a label on its edge where it covers least, and note that the place is taken."""
    width, height = max(16.0, text_width(arrow.label, 11.0) + 8.0), 15.0

    def box(place: float) -> tuple[float, float, float, float]:
        x, y = curve.at(place)
        return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def covered(one: tuple[float, float, float, float]) -> float:
        return sum(
            max(0.0, min(one[2], two[2]) - max(one[0], two[0]))
            * max(0.0, min(one[3], two[3]) - max(one[1], two[1]))
            for two in taken
        )

    places = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.12, 0.88)
    best = min(places, key=lambda place: covered(box(place)))
    chosen = box(best)
    taken.append(chosen)
    x, y = curve.at(best)
    return element(
        "g",
        element("title", printable(arrow.details)),
        element("rect", x=chosen[0], y=chosen[1], width=width, height=height, rx=7.5),
        element("text", arrow.label, x=x, y=y + 4.0),
        class_=f"label {_class_of(arrow, backward)}",
    )


def _node(
    box: Box, number: int, place: tuple[float, float, float, float], size: tuple[float, float]
) -> Markup:
    left, top, right, _ = place
    middle, room = (left + right) / 2, size[0] - 14.0
    title, subtitle = printable(box.title), printable(box.subtitle)
    return element(
        "g",
        element("title", printable(box.details)),
        element("rect", x=left, y=top, width=size[0], height=size[1], rx=9),
        element("text", shortened(title, room, 15.0), x=middle, y=top + 20.0, class_="name"),
        element("text", shortened(subtitle, room, 11.5), x=middle, y=top + 36.0, class_="sub"),
        class_=f"node {box.kind} n{number}",
        data_node=number,
        tabindex=0,
        role="img",
        aria_label=printable(box.details),
    )


def _markers(name: str) -> Markup:
    """Return one arrow head for each delay, since a marker does not take its line's colour."""
    return element(
        "defs",
        *(
            element(
                "marker",
                element("path", d="M0 1L9 5L0 9z", class_=f"head d{delay}"),
                id=f"{name}-a{delay}",
                viewBox="0 0 10 10",
                refX=8.5,
                refY=5,
                markerWidth=6.5,
                markerHeight=6.5,
                orient="auto-start-reverse",
            )
            for delay in range(DELAY_CLASSES)
        ),
    )


def delay_matrix(graph: Graph) -> list[list[list[int]]]:
    """Return for each source and target, in the graph's order, the delays of its connections."""
    index = {population.name: number for number, population in enumerate(graph.populations)}
    matrix: list[list[list[int]]] = [[[] for _ in index] for _ in index]
    for edge in graph.connections:
        matrix[index[edge.source]][index[edge.target]].append(edge.delay_steps)
    return [[sorted(cell) for cell in row] for row in matrix]


__all__ = ["Layout", "delay_matrix", "draw_flow", "draw_graph"]
