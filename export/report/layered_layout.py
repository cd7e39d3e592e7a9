"""Lay out a directed graph in columns, along the way that information takes.

The classic layered method (Sugiyama, Tagawa and Toda, 1981): columns by longest path, long edges
cut at every column, rows ordered by the mean of their neighbours to cross less, heights by least
squares. Two things are our own: an edge within a step has to point to the right, a delayed one only
where it closes no loop, so that recurrence shows as what points back.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right, insort
from collections.abc import Sequence

ROW_GAP, COLUMN_GAP, LANE = 18.0, 64.0, 12.0
_SWEEPS = 24

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Edge:
    """An edge between nodes by number."""

    source: int
    target: int
    instant: bool = True
    """Whether it acts within the step, and so has to point forward."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where everything goes, in pixels from the top left."""

    centers: list[Point]
    routes: list[list[Point]]
    """For each edge the points it passes, from its source's side to its target's."""
    backward: list[bool]
    """For each edge whether it points against the reading direction, or stays in its column."""
    width: float
    height: float


def layered_layout(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[Edge],
    first: Sequence[int] = (),
    last: Sequence[int] = (),
) -> Layout:
    """Lay out a graph.

    Args:
        sizes: Width and height of each node.
        edges: The edges; a self-loop gets a route of no points.
        first: Nodes where information enters, for the left.
        last: Nodes where it leaves, for the right.
    """
    columns = assign_columns(len(sizes), edges, first, last)
    grid = _Grid(sizes, edges, columns)
    grid.reduce_crossings()
    grid.assign_heights()
    return grid.layout()


def assign_columns(
    count: int, edges: Sequence[Edge], first: Sequence[int] = (), last: Sequence[int] = ()
) -> list[int]:
    """Return the column of each node.

    Between groups that no loop connects every edge points right. Within a loop instant edges do,
    and the nodes follow by how many edges they are away from where information enters the loop,
    moved until few edges stay in a column or point back.
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    for edge in edges:
        if edge.source != edge.target:
            successors[edge.source].append(edge.target)
    columns = [0] * count
    for group in _loops(successors):
        members = set(group)
        entering = [e for e in edges if e.target in members and e.source not in members]
        start = max((columns[edge.source] + 1 for edge in entering), default=0)
        entries = {edge.target for edge in entering} | (members & set(first)) or {min(group)}
        for node, distance in _distances(entries, members, successors).items():
            columns[node] = start + distance
        instant = _without_loops(
            [e for e in edges if e.instant and {e.source, e.target} <= members]
        )
        for _ in group:
            for edge in instant:
                columns[edge.target] = max(columns[edge.target], columns[edge.source] + 1)
        _spread(
            group, start, [e for e in edges if {e.source, e.target} <= members], instant, columns
        )
    end = max(columns, default=0)
    for node in last:
        leaves_only = not any(target != node for target in successors[node])
        columns[node] = end if leaves_only else columns[node]
    return columns


def _loops(successors: list[list[int]]) -> list[list[int]]:
    """Return the strongly connected groups, those that information meets first in front.

    Tarjan, 1972, without recursion: a long chain must not meet Python's limit.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    groups: list[list[int]] = []
    for root in range(len(successors)):
        work = [(root, iter(successors[root]))] if root not in index else []
        while work:
            node, remaining = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            for following in remaining:
                if following not in index:
                    work.append((following, iter(successors[following])))
                    break
                if following in stack:
                    low[node] = min(low[node], index[following])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    groups.append(stack[cut:])
                    del stack[cut:]
    return groups[::-1]


def _spread(
    group: list[int], start: int, inside: list[Edge], instant: list[Edge], columns: list[int]
) -> None:
    """Move the nodes of a loop, one after the other, to the column that costs least.

    An edge that stays in its column reads worst, one that points back next, one across many
    columns needs room; a column much fuller than others makes the drawing high.
    """
    wide = math.ceil(1.4 * math.sqrt(len(group)))
    if wide < 4:
        return
    last = start + max(wide, max(columns[node] for node in group) - start + 1)
    touching: dict[int, list[Edge]] = {node: [] for node in group}
    for edge in inside:
        if edge.source != edge.target:
            touching[edge.source].append(edge)
            touching[edge.target].append(edge)
    before: dict[int, list[int]] = {node: [] for node in group}
    after: dict[int, list[int]] = {node: [] for node in group}
    for edge in instant:
        before[edge.target].append(edge.source)
        after[edge.source].append(edge.target)

    def cost(node: int, column: int) -> float:
        total = 0.0
        for edge in touching[node]:
            source = column if edge.source == node else columns[edge.source]
            target = column if edge.target == node else columns[edge.target]
            span = target - source
            total += 2.5 if span == 0 else 1.0 - 0.2 * span if span < 0 else 0.2 * span
        fullness = sum(columns[other] == column for other in group if other != node)
        return total + 0.06 * fullness * fullness

    for _ in range(_SWEEPS):
        moved = False
        for node in group:
            low = max((columns[other] + 1 for other in before[node]), default=start)
            high = min((columns[other] for other in after[node]), default=last)
            best = min(range(low, high), key=lambda column: (cost(node, column), column))
            if cost(node, best) < cost(node, columns[node]) - 1e-9:
                columns[node], moved = best, True
        if not moved:
            break
    lowest = min(columns[node] for node in group)
    for node in group:
        columns[node] -= lowest - start


def _distances(entries: set[int], members: set[int], successors: list[list[int]]) -> dict[int, int]:
    distances = dict.fromkeys(sorted(entries), 0)
    queue = list(distances)
    for node in queue:
        for following in successors[node]:
            if following in members and following not in distances:
                distances[following] = distances[node] + 1
                queue.append(following)
    return distances


def _without_loops(edges: list[Edge]) -> list[Edge]:
    """Return edges that form no loop; those that would close one are left out."""
    reachable: dict[int, set[int]] = {}
    kept = []
    for edge in edges:
        beyond = {edge.target} | reachable.get(edge.target, set())
        if edge.source in beyond:
            continue
        kept.append(edge)
        for node, reached in [*reachable.items(), (edge.source, reachable.get(edge.source, set()))]:
            if node == edge.source or edge.source in reached:
                reachable[node] = reached | beyond
    return kept


class _Grid:
    """Nodes and the bends of long edges, in columns."""

    def __init__(
        self, sizes: Sequence[tuple[float, float]], edges: Sequence[Edge], columns: list[int]
    ) -> None:
        self.sizes = list(sizes)
        self.edges = edges
        self.columns = list(columns)
        self.count = len(sizes)
        self.chains: list[list[int]] = []
        links: list[tuple[int, int]] = []
        for edge in edges:
            left, right = edge.source, edge.target
            if self.columns[left] > self.columns[right]:
                left, right = right, left
            chain = [left]
            for column in range(self.columns[left] + 1, self.columns[right]):
                self.columns.append(column)
                self.sizes.append((0.0, 0.0))
                chain.append(len(self.sizes) - 1)
            chain.append(right)
            if self.columns[left] != self.columns[right]:
                links += zip(chain[:-1], chain[1:], strict=True)
            self.chains.append(chain if left == edge.source else chain[::-1])
        total = len(self.sizes)
        self.left: list[list[int]] = [[] for _ in range(total)]
        self.right: list[list[int]] = [[] for _ in range(total)]
        for one, other in links:
            self.right[one].append(other)
            self.left[other].append(one)
        self.rows: list[list[int]] = [[] for _ in range(max(self.columns, default=-1) + 1)]
        for node in range(total):
            self.rows[self.columns[node]].append(node)
        self.y = [0.0] * total

    def reduce_crossings(self) -> None:
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(_SWEEPS):
            forward = sweep % 2 == 0
            neighbours = self.left if forward else self.right
            for row in self.rows if forward else self.rows[::-1]:
                place = self._places()
                mean = {
                    node: sum(place[n] for n in neighbours[node]) / len(neighbours[node])
                    if neighbours[node]
                    else place[node]
                    for node in row
                }
                row.sort(key=mean.__getitem__)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def _places(self) -> dict[int, float]:
        """Return each node's place in its column, from 0 to 1, so that columns compare."""
        return {
            node: (index + 0.5) / len(row) for row in self.rows for index, node in enumerate(row)
        }

    def _crossings(self) -> int:
        total = 0
        for row, following in zip(self.rows, self.rows[1:], strict=False):
            place = {node: index for index, node in enumerate(following)}
            seen: list[int] = []
            for node in row:
                ends = sorted(place[other] for other in self.right[node])
                total += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return total

    def assign_heights(self) -> None:
        for row in self.rows:
            self._settle(row, [0.0] * len(row))
        for sweep in range(_SWEEPS):
            for row in self.rows if sweep % 2 == 0 else self.rows[::-1]:
                wanted = []
                for node in row:
                    around = [self.y[other] for other in (*self.left[node], *self.right[node])]
                    wanted.append(sum(around) / len(around) if around else self.y[node])
                self._settle(row, wanted)

    def _settle(self, row: list[int], wanted: list[float]) -> None:
        """Move a column as close as possible to the heights wanted, in order and without overlap.

        Subtracting the distances that must lie between turns this into a regression on values
        that only have to rise, which pooling neighbours solves exactly.
        """
        offsets, at = [], 0.0
        for index, node in enumerate(row):
            if index:
                before = row[index - 1]
                gap = LANE if before >= self.count or node >= self.count else ROW_GAP
                at += (self.sizes[before][1] + self.sizes[node][1]) / 2 + gap
            offsets.append(at)
        pools: list[list[float]] = []  # sum, weight, count
        for target, offset, node in zip(wanted, offsets, row, strict=True):
            # A bend that gives way costs a straight line, a node that does only a little length.
            weight = 2.0 if node >= self.count else 1.0
            pools.append([(target - offset) * weight, weight, 1])
            while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
                total, weight, count = pools.pop()
                pools[-1] = [pools[-1][0] + total, pools[-1][1] + weight, pools[-1][2] + count]
        levels = [pool[0] / pool[1] for pool in pools for _ in range(int(pool[2]))]
        for node, level, offset in zip(row, levels, offsets, strict=True):
            self.y[node] = level + offset

    def layout(self) -> Layout:
        top = min((y - size[1] / 2 for y, size in zip(self.y, self.sizes, strict=True)), default=0)
        x_of, edge_at = [], 0.0
        for column, row in enumerate(self.rows):
            width = max((self.sizes[node][0] for node in row), default=0.0)
            x_of.append(edge_at + width / 2)
            crossing = sum(len(self.right[node]) for node in row)
            edge_at += width
            if column < len(self.rows) - 1:
                edge_at += COLUMN_GAP + min(56.0, 2.5 * crossing)
        centers = [(x_of[column], y - top) for column, y in zip(self.columns, self.y, strict=True)]
        bottom = max(
            (center[1] + size[1] / 2 for center, size in zip(centers, self.sizes, strict=True)),
            default=0.0,
        )
        flags = [self.columns[e.source] >= self.columns[e.target] for e in self.edges]
        return Layout(
            centers=centers[: self.count],
            routes=self._routes(centers),
            backward=flags,
            width=edge_at,
            height=bottom,
        )

    def _routes(self, centers: list[Point]) -> list[list[Point]]:
        """Return the points of each edge, its ends spread over the sides of its nodes."""
        sides: dict[tuple[int, bool], list[tuple[float, int, int]]] = {}
        for number, (edge, chain) in enumerate(zip(self.edges, self.chains, strict=True)):
            if edge.source == edge.target:
                continue
            for end, node, following in ((0, chain[0], chain[1]), (-1, chain[-1], chain[-2])):
                # What stays in its column leaves and enters on the right.
                to_right = self.columns[following] >= self.columns[node]
                sides.setdefault((node, to_right), []).append((centers[following][1], number, end))
        ends: dict[tuple[int, int], Point] = {}
        for (node, to_right), attached in sides.items():
            (x, y), (width, height) = centers[node], self.sizes[node]
            spread = min(8.0, (height - 12.0) / max(len(attached), 1))
            for place, (_, number, end) in enumerate(sorted(attached)):
                shift = (place - (len(attached) - 1) / 2) * spread
                ends[number, end] = (x + (width / 2 if to_right else -width / 2), y + shift)
        return [
            []
            if edge.source == edge.target
            else [
                ends[number, 0],
                *(centers[node] for node in chain[1:-1]),
                ends[number, -1],
            ]
            for number, (edge, chain) in enumerate(zip(self.edges, self.chains, strict=True))
        ]
