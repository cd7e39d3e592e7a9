"""Hypothesis strategies for the descriptions in `random_networks`."""

from __future__ import annotations

from hypothesis import strategies as st
from random_network_layers import ACTIVATIONS
from random_networks import (
    Action,
    Array,
    Chain,
    Edge,
    Fork,
    Graph,
    Gru,
    Latent,
    Linear,
    Lstm,
    Network,
    Norm,
    Past,
    PastOfTree,
    Scaled,
    Tree,
)

_sizes = st.integers(1, 6)
_delays = st.integers(1, 4)
_activations = st.sampled_from(list(ACTIVATIONS))


def _trees(leaves: st.SearchStrategy, width: int) -> st.SearchStrategy:
    def containers(inner: st.SearchStrategy) -> st.SearchStrategy:
        kinds = st.sampled_from(["dict", "tuple", "list"])
        several = st.lists(inner, min_size=1, max_size=3).map(tuple)
        two = st.tuples(inner, inner)
        return st.one_of(
            st.builds(Tree, kinds, several),
            st.builds(Tree, st.sampled_from(["pair", "reading"]), two),
        )

    return st.recursive(leaves, containers, max_leaves=width)


_floats = st.builds(Array, st.lists(st.integers(1, 4), max_size=2).map(tuple), st.just("float32"))
_arrays = st.builds(
    Array,
    st.lists(st.integers(1, 4), max_size=2).map(tuple),
    st.sampled_from(["float32", "bool", "uint8", "int32"]),
)
_simple_layers = st.one_of(
    st.builds(Linear, _sizes, _activations),
    st.builds(Lstm, _sizes, st.booleans(), st.booleans()),
    st.builds(Gru, _sizes, st.booleans()),
    st.builds(Past, _delays, st.sampled_from([0.0, 0.25])),
    st.builds(PastOfTree, _delays),
    st.builds(Latent, st.integers(1, 4), st.booleans()),
    st.builds(Scaled, st.sampled_from([0.5, 1.0, 0.3])),
    st.builds(Norm, st.sampled_from([0.0, 0.3]), st.sampled_from([1.0, 2.5])),
)


@st.composite
def _graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 4))
    sizes = tuple(draw(_sizes) for _ in range(count))
    kinds = st.sampled_from(["linear", "linear", "tanh", "lstm", "gru"])

    def edge(source: int, target: int) -> Edge:
        # What closes a loop has to take time.
        lowest = int(source >= target)
        return Edge(source, target, draw(st.integers(lowest, 4)), draw(kinds))

    # Every population is reached from the first one, so that no output is a constant.
    edges = [edge(draw(st.integers(0, target - 1)), target) for target in range(1, count + 1)]
    for _ in range(draw(st.integers(0, 3))):
        edges.append(edge(draw(st.integers(0, count)), draw(st.integers(1, count))))
    return Graph(
        sizes,
        tuple(draw(_activations) for _ in range(count)),
        tuple(edges),
        draw(st.integers(1, count)),
    )


def _nested(inner: st.SearchStrategy) -> st.SearchStrategy:
    chains = st.builds(Chain, st.lists(inner, min_size=1, max_size=2).map(tuple))
    kinds = st.sampled_from(["parallel", "merge", "concat", "map"])
    forks = st.builds(Fork, kinds, st.lists(chains, min_size=1, max_size=3).map(tuple))
    return st.one_of(chains, forks)


# A third are graphs: they have most that can go wrong.
_flat = st.sampled_from(["layer", "layer", "graph"]).flatmap(
    lambda kind: _graphs() if kind == "graph" else _simple_layers
)
_layers = st.recursive(_flat, _nested, max_leaves=3)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Draw a policy: observation, statistics, trunk, action, critic."""
    observation = draw(_trees(_arrays, 3))
    mean, std = draw(
        st.sampled_from([(0.0, 1.0), (0.3, 1.7), (-40.0, 0.5), (1e4, 1e-2), (None, 1.0)])
    )
    if mean is None:
        # What no normalizer makes a float of needs a float beside it.
        observation = Tree("pair", (draw(_floats), observation))
    is_dict = isinstance(observation, Tree) and observation.kind == "dict"
    critic = draw(st.booleans())
    return Network(
        observation=observation,
        trunk=draw(st.lists(_layers, min_size=1, max_size=2).map(tuple)),
        action=draw(_trees(st.builds(Action, st.integers(1, 3)), 3)) if critic else Action(1),
        mean=mean,
        std=std,
        # The first values are zeros, which is far from a large mean.
        observation_delay=draw(st.integers(0, 3)) if mean is None or abs(mean) < 1 else 0,
        actor_reads=draw(st.integers(1, len(observation.children))) if is_dict else None,
        critic=critic,
        seed=draw(st.integers(0, 999)),
    )
