"""Networks as plain descriptions, whose `repr` is Python that builds the same network again.

    >>> network, observation = build(Network(Array((3,), "float32"), trunk=(Linear(4, "tanh"),)))

Descriptions are drawn in `random_network_strategies`. Weights are kept small enough that rounding
does not grow from step to step: a chaotic network differs between any two compilers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jp
import numpy as np
from flax import nnx
from random_network_layers import (
    Chain,
    Edge,
    Fork,
    Graph,
    Gru,
    Latent,
    Layer,
    Linear,
    Lstm,
    Norm,
    Past,
    PastOfTree,
    Scaled,
    build_layers,
    with_statistics,
)

from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.delay import Delay
from nnx_ppo.networks.factories import make_mlp
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph.connection import Connection
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Filter, Flattener

__all__ = [
    "Array",
    "Tree",
    "Action",
    "Network",
    "Pair",
    "Reading",
    "build",
    "observations",
    "Chain",
    "Edge",
    "Fork",
    "Graph",
    "Gru",
    "Latent",
    "Linear",
    "Lstm",
    "Norm",
    "Past",
    "PastOfTree",
    "Scaled",
]


class Pair(NamedTuple):
    """A named tuple, as a tree of observations or actions may have it."""

    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Reading:
    """A dataclass, likewise."""

    force: Any
    touch: Any


@dataclass(frozen=True)
class Array:
    """One leaf of an observation."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Action:
    """One leaf of an action: a head with a sampler."""

    size: int


@dataclass(frozen=True)
class Tree:
    """A container; `pair` and `reading` have two children."""

    kind: str
    children: tuple[Any, ...]

    @property
    def names(self) -> list[str]:
        if self.kind == "pair":
            return list(Pair._fields)
        if self.kind == "reading":
            return [field.name for field in dataclasses.fields(Reading)]
        return [f"k{index}" for index in range(len(self.children))]


@dataclass(frozen=True)
class Network:
    """A policy: what it observes, how that is normalized, a trunk, heads, a critic."""

    observation: Any
    trunk: tuple[Layer, ...] = ()
    action: Any = Action(1)
    mean: float | None = 0.0
    """Of the float leaves, in the first normalizer; None for a policy without one."""
    std: float = 1.0
    observation_delay: int = 0
    actor_reads: int | None = None
    """How many entries of an observation that is a dict the actor reads; None for all."""
    critic: bool = True
    """Whether there is one; without it the trunk's last layer is the action."""
    seed: int = 0


def build(described: Network) -> tuple[Any, Any]:
    """Return the network and the specs of one observation."""
    rngs = nnx.Rngs(described.seed)
    observation = tree_of(
        described.observation, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    )
    front: list[Any] = []
    if described.observation_delay:
        front.append(Delay(observation, described.observation_delay))
    if described.mean is not None:
        normalizer = Normalizer(jax.tree.map(lambda leaf: tuple(leaf.shape), observation))
        front.append(_with_leaf_statistics(normalizer, described, observation))
    reads = described.actor_reads
    parts: list[Any] = [Flattener()]
    seen = observation
    if reads is not None and isinstance(observation, dict):
        names = list(observation)[:reads]
        parts = [Filter({name: name for name in names}), Flattener()]
        seen = {name: observation[name] for name in names}
    size, everything = (
        sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
        for tree in (seen, observation)
    )
    layers, size = build_layers(described.trunk, size, rngs)
    if described.critic:
        actor = Sequential([*parts, *layers, _heads(described.action, size, rngs)])
        critic = [Flattener(), make_mlp([everything, 4, 1], rngs, activation_last_layer=False)]
        network = Sequential([*front, PPOAdapter(action=actor, value=Sequential(critic))])
    else:
        network = Sequential([*front, *parts, *layers, Dense(size, 2, rngs)])
    _calm(network, described.seed)
    return network, observation


def observations(described: Network, steps: int, rows: int) -> Any:
    """Return a tree of leaves `[steps, rows, *shape]` such as the normalizer has seen."""
    generator = np.random.default_rng(described.seed)

    def draw(leaf: Array) -> np.ndarray:
        shape = (steps, rows, *leaf.shape)
        if leaf.dtype == "bool":
            return generator.random(shape) < 0.5
        if leaf.dtype == "uint8":
            high = 256 if described.mean is not None else 8
            return generator.integers(0, high, shape).astype(np.uint8)
        if leaf.dtype == "int32":
            return generator.integers(-3, 4, shape).astype(np.int32)
        mean, std = described.mean or 0.0, described.std if described.mean is not None else 1.0
        return (mean + std * generator.standard_normal(shape)).astype(leaf.dtype)

    return tree_of(described.observation, draw)


def tree_of(described: Any, make_leaf: Any) -> Any:
    """Return the tree that a description stands for, its leaves made by `make_leaf`."""
    if not isinstance(described, Tree):
        return make_leaf(described)
    children = [tree_of(child, make_leaf) for child in described.children]
    if described.kind == "dict":
        return dict(zip(described.names, children, strict=True))
    return _collected(described.kind, children)


def _collected(kind: str, children: list[Any]) -> Any:
    made = {"pair": lambda: Pair(*children), "reading": lambda: Reading(*children)}
    return made.get(kind, lambda: tuple(children) if kind == "tuple" else children)()


class _Collect(StatefulModule):
    """Makes another container of a dict."""

    def __init__(self, kind: str, names: list[str]):
        self.kind = kind
        self.names = tuple(names)

    def __call__(
        self, module_state: Any, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        output = _collected(self.kind, [obs[name] for name in self.names])
        return StatefulModuleOutput(module_state, output, jp.zeros(()), {})


def _heads(action: Any, size: int, rngs: nnx.Rngs) -> Any:
    if isinstance(action, Action):
        sampler = NormalTanhSampler(rngs, entropy_weight=1e-2)
        return Sequential([Dense(size, 2 * action.size, rngs), sampler])
    children = {
        name: _heads(child, size, rngs)
        for name, child in zip(action.names, action.children, strict=True)
    }
    heads = Parallel(children)
    return (
        heads if action.kind == "dict" else Sequential([heads, _Collect(action.kind, action.names)])
    )


def _with_leaf_statistics(normalizer: Normalizer, described: Network, observation: Any) -> Any:
    """Give float leaves the description's statistics, others those of their usual values."""
    usual = {"uint8": (128.0, 64.0), "int32": (0.0, 2.0), "bool": (0.5, 0.5)}

    def statistics(leaf: Any) -> tuple[float, float]:
        return usual.get(str(leaf.dtype), (described.mean or 0.0, described.std))

    return with_statistics(normalizer, observation, statistics)


def _calm(network: Any, seed: int) -> None:
    """Make weights small where they feed back, and biases unlike zero."""
    generator = np.random.default_rng(seed)
    incoming: dict[str, int] = {}
    connections = [m for _, m in nnx.iter_modules(network) if isinstance(m, Connection)]
    for connection in connections:
        incoming[connection.dst] = incoming.get(connection.dst, 0) + 1
    for connection in connections:
        for _, module in nnx.iter_modules(connection):
            if isinstance(module, nnx.Linear):
                module.kernel[...] = module.kernel[...] * (0.5 / incoming[connection.dst])
    for _, module in nnx.iter_modules(network):
        if isinstance(module, nnx.Linear) and module.bias is not None:
            noise = generator.normal(0.0, 0.1, module.bias.shape)
            module.bias[...] = jp.asarray(noise, jp.float32)
