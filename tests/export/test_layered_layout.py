"""Columns follow the flow, nothing overlaps, and what is recurrent points back."""

import itertools

import numpy as np
import pytest

from export.report.layered_layout import Edge, assign_columns, layered_layout

SIZE = (100.0, 46.0)


def overlapping(layout, count):
    pairs = itertools.combinations(layout.centers[:count], 2)
    return [
        (one, other)
        for one, other in pairs
        if abs(one[0] - other[0]) < SIZE[0] and abs(one[1] - other[1]) < SIZE[1]
    ]


def test_a_chain_reads_from_left_to_right_on_one_line():
    layout = layered_layout([SIZE] * 4, [Edge(0, 1), Edge(1, 2), Edge(2, 3)], first=[0], last=[3])
    xs, ys = zip(*layout.centers, strict=True)
    assert list(xs) == sorted(xs) and len(set(xs)) == 4
    assert max(ys) - min(ys) < 1e-6
    assert layout.backward == [False, False, False]


def test_delayed_edges_that_close_no_loop_point_right_too():
    edges = [Edge(0, 1, instant=False), Edge(1, 2, instant=False), Edge(0, 2, instant=False)]
    assert assign_columns(3, edges) == [0, 1, 2]


def test_only_what_closes_a_loop_points_back():
    edges = [Edge(0, 1), Edge(1, 2), Edge(2, 1, instant=False), Edge(1, 1, instant=False)]
    layout = layered_layout([SIZE] * 3, edges)
    assert layout.backward == [False, False, True, True]
    assert layout.routes[3] == []


def test_a_ring_of_delays_alone_is_spread_from_its_entry():
    ring = [Edge(n, (n + 1) % 4, instant=False) for n in range(4)]
    assert assign_columns(4, ring, first=[1]) == [3, 0, 1, 2]


def test_instant_edges_that_form_a_loop_do_not_hang():
    columns = assign_columns(3, [Edge(0, 1), Edge(1, 2), Edge(2, 0)])
    assert sorted(columns) == [0, 1, 2]


def test_two_arms_are_not_crossed():
    # Sources 0 and 1 feed 3 and 2: the order within the column has to be turned round.
    layout = layered_layout([SIZE] * 4, [Edge(0, 3), Edge(1, 2)])
    above = layout.centers[0][1] < layout.centers[1][1]
    assert (layout.centers[3][1] < layout.centers[2][1]) == above


def test_edges_begin_and_end_at_the_sides_of_their_nodes():
    layout = layered_layout([SIZE] * 3, [Edge(0, 1), Edge(1, 2), Edge(0, 2)])
    for edge, route in zip([(0, 1), (1, 2), (0, 2)], layout.routes, strict=True):
        (x0, y0), (x1, y1) = layout.centers[edge[0]], layout.centers[edge[1]]
        assert route[0][0] == x0 + 50 and abs(route[0][1] - y0) <= 23
        assert route[-1][0] == x1 - 50 and abs(route[-1][1] - y1) <= 23
    assert len(layout.routes[2]) == 3  # bent around the node between


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_have_no_overlaps_and_stay_in_their_frame(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 30))
    edges = []
    for _ in range(int(generator.integers(1, 90))):
        source, target = (int(n) for n in generator.integers(0, count, 2))
        edges.append(
            Edge(source, target, instant=bool(source < target and generator.random() < 0.4))
        )
    layout = layered_layout([SIZE] * count, edges, first=[0], last=[count - 1])
    assert overlapping(layout, count) == []
    for edge, (left, right) in (
        (e, (layout.centers[e.source], layout.centers[e.target])) for e in edges
    ):
        if edge.instant:
            assert left[0] < right[0]
    for x, y in [*layout.centers, *itertools.chain.from_iterable(layout.routes)]:
        assert -1e-6 <= x <= layout.width + 1e-6
        assert -1e-6 <= y <= layout.height + 1e-6


def test_nothing_and_one_node_are_laid_out():
    assert layered_layout([], []).centers == []
    assert layered_layout([SIZE], [Edge(0, 0)]).centers == [(50.0, 23.0)]
