"""Layers of a described network, each from one flat array `[batch, width]` to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
from flax import nnx

from nnx_ppo.networks.containers import Concat, Parallel, Sequential, Splitter
from nnx_ppo.networks.delay import Delay
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import GRU, LSTM
from nnx_ppo.networks.utils import Flattener, Map, Merge, Scale
from nnx_ppo.networks.variational import AR1VariationalBottleneck, VariationalBottleneck

ACTIVATIONS: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "relu": nnx.relu,
    "tanh": nnx.tanh,
    "swish": nnx.swish,
    "gelu": nnx.gelu,
    "elu": nnx.elu,
    "sigmoid": nnx.sigmoid,
    "softplus": nnx.softplus,
    "leaky_relu": nnx.leaky_relu,
}


class Layer:
    """Base of all layers."""

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        """Return modules to run one after the other, and the width of what they put out."""
        raise NotImplementedError


def build_layers(layers: Sequence[Layer], width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
    """Return the modules of all layers, and the last width."""
    modules: list[Any] = []
    for layer in layers:
        built, width = layer.build(width, rngs)
        modules += built
    return modules, width


@dataclass(frozen=True)
class Linear(Layer):
    """A `Dense`."""

    size: int
    activation: str = "none"

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        return [Dense(width, self.size, rngs, activation=ACTIVATIONS[self.activation])], self.size


@dataclass(frozen=True)
class Lstm(Layer):
    """An `LSTM`."""

    size: int
    optimized: bool = True
    trained_start: bool = False

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        options: dict[str, Any] = {"use_optimized": self.optimized}
        module = LSTM(width, self.size, rngs, trainable_initial_state=self.trained_start, **options)
        return [_started(module)], self.size


@dataclass(frozen=True)
class Gru(Layer):
    """A `GRU`."""

    size: int
    trained_start: bool = False

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        module = GRU(width, self.size, rngs, trainable_initial_state=self.trained_start)
        return [_started(module)], self.size


def _started(module: Any) -> Any:
    """Give a trained initial state values unlike zero."""
    for name in ("initial_h", "initial_c"):
        if hasattr(module, name):
            variable = getattr(module, name)
            variable[...] = jp.linspace(-0.5, 0.5, variable.shape[0])
    return module


@dataclass(frozen=True)
class Past(Layer):
    """A `Delay`."""

    steps: int
    initial: float = 0.0

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        return [Delay(jp.zeros(width), self.steps, initial_value=self.initial)], width


@dataclass(frozen=True)
class PastOfTree(Layer):
    """A `Delay` of a dict of two, or of one if there is but one feature."""

    steps: int

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        sizes = _pieces(width, min(width, 2))
        sample = {name: jp.zeros(size) for name, size in sizes.items()}
        return [Splitter(**sizes), Delay(sample, self.steps), Flattener()], width


@dataclass(frozen=True)
class Latent(Layer):
    """A variational bottleneck behind the layer that it needs."""

    size: int
    auto_regressive: bool = False

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        kind = AR1VariationalBottleneck if self.auto_regressive else VariationalBottleneck
        return [Dense(width, 2 * self.size, rngs), kind(self.size, rngs)], self.size


@dataclass(frozen=True)
class Scaled(Layer):
    """A `Scale`."""

    factor: float

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        return [Scale(self.factor)], width


@dataclass(frozen=True)
class Norm(Layer):
    """A `Normalizer` of what a layer puts out."""

    mean: float = 0.0
    std: float = 1.0

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        spec = jax.ShapeDtypeStruct((width,), jp.float32)
        return [with_statistics(Normalizer(width), spec, lambda _: (self.mean, self.std))], width


def with_statistics(normalizer: Normalizer, observation: Any, statistics: Any) -> Normalizer:
    """Set mean and standard deviation, each feature's a little unlike the next one's.

    Args:
        normalizer: Changed in place.
        observation: Tree of specs.
        statistics: From a leaf's spec to its mean and standard deviation.
    """
    count = 1000.0

    def spread(leaf: Any) -> np.ndarray:
        return np.linspace(0.8, 1.2, int(np.prod(leaf.shape))).reshape(leaf.shape)

    def mean(leaf: Any) -> jax.Array:
        centre, std = statistics(leaf)
        return jp.asarray(centre + std * (spread(leaf) - 1.0), jp.float32)

    def squares(leaf: Any) -> jax.Array:
        return jp.asarray(count * (statistics(leaf)[1] * spread(leaf)) ** 2, jp.float32)

    normalizer.mean.set_value(jax.tree.map(mean, observation))
    normalizer.M2.set_value(jax.tree.map(squares, observation))
    normalizer.counter.set_value(jp.asarray(count, jp.float32))
    return normalizer


@dataclass(frozen=True)
class Chain(Layer):
    """A `Sequential` inside the trunk's."""

    layers: tuple[Layer, ...]

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        modules, width = build_layers(self.layers, width, rngs)
        return [Sequential(modules)], width


@dataclass(frozen=True)
class Fork(Layer):
    """Branches: `parallel` and `merge` get the whole input, those of `concat` and `map` a piece.

    Where there are more branches than features, all get the whole input.
    """

    kind: str
    branches: tuple[Chain, ...]

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        cut = self.kind in ("concat", "map") and width >= len(self.branches)
        sizes = _pieces(width, len(self.branches)) if cut else {}
        children, total = {}, 0
        for index, branch in enumerate(self.branches):
            name = f"b{index}"
            (children[name],), size = branch.build(sizes.get(name, width), rngs)
            total += size
        if not cut and self.kind == "merge":
            inner = {f"m{name}": Parallel({name: child}) for name, child in children.items()}
            return [Merge(inner), Flattener()], total
        if not cut:
            return [Parallel(children), Flattener()], total
        if self.kind == "concat":
            return [Splitter(**sizes), Concat(children)], total
        return [Splitter(**sizes), Map(children), Flattener()], total


def _pieces(width: int, count: int) -> dict[str, int]:
    """Cut a width into pieces of about the same length, the last one the longest."""
    sizes = [width // count] * count
    sizes[-1] += width % count
    return {f"b{index}": size for index, size in enumerate(sizes)}


@dataclass(frozen=True)
class Edge:
    """A connection between populations, given by their numbers."""

    source: int
    target: int
    delay: int = 0
    transform: str = "linear"


@dataclass(frozen=True)
class Graph(Layer):
    """A `PopulationGraph`: population 0 observes, the last `outputs` ones are put out."""

    sizes: tuple[int, ...]
    """Of all populations but the first, which has the width of the input."""
    activations: tuple[str, ...]
    edges: tuple[Edge, ...]
    outputs: int = 1

    def build(self, width: int, rngs: nnx.Rngs) -> tuple[list[Any], int]:
        graph = PopulationGraph(rngs)
        sizes = (width, *self.sizes)
        first_output = len(sizes) - self.outputs
        graph.add_input("p0", width, input_from="x")
        for index, (size, name) in enumerate(zip(self.sizes, self.activations, strict=True), 1):
            add = graph.add_output if index >= first_output else graph.add_population
            add(f"p{index}", size, activation=ACTIVATIONS[name])
        for edge in self.edges:
            transform = _transform(edge.transform, sizes[edge.source], sizes[edge.target], rngs)
            ends = (f"p{edge.source}", f"p{edge.target}")
            graph.connect(*ends, transform=transform, delay=edge.delay)
        graph.finalize()
        return [Splitter(x=width), graph, Flattener()], sum(sizes[first_output:])


def _transform(kind: str, source: int, target: int, rngs: nnx.Rngs) -> Any:
    if kind == "lstm":
        return LSTM(source, target, rngs)
    if kind == "gru":
        return GRU(source, target, rngs)
    if kind == "tanh":
        return Dense(source, target, rngs, activation=nnx.tanh)
    return None
