"""The networks that the benchmarks export, each with one example observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential, Splitter
from nnx_ppo.networks.factories import make_mlp, make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.utils import Flattener


def mlp(rngs: nnx.Rngs) -> tuple[Any, Any]:
    """A normalizer and four hidden layers of 64, relu."""
    return make_mlp_actor_critic(8, 2, [64] * 4, [8], rngs), np.zeros(8, np.float32)


def lstm(rngs: nnx.Rngs) -> tuple[Any, Any]:
    """A normalizer and an LSTM of 64."""
    return _policy(8, [LSTM(8, 64, rngs), Dense(64, 4, rngs)], rngs), np.zeros(8, np.float32)


def small_graph(rngs: nnx.Rngs) -> tuple[Any, Any]:
    """Three populations, 8 to 32 to 2 actions, with delays of 1 and 3."""
    graph = PopulationGraph(rngs)
    graph.add_input("sensors", 8, input_from="sensors")
    graph.add_population("hidden", 32, activation=nnx.tanh)
    graph.add_output("command", 4)
    graph.connect("sensors", "hidden", delay=1)
    graph.connect("hidden", "hidden", delay=1)
    graph.connect("hidden", "command", delay=3)
    graph.finalize()
    trunk = [Splitter(sensors=8), graph, Flattener()]
    return _policy(8, trunk, rngs), np.zeros(8, np.float32)


def large_graph(rngs: nnx.Rngs) -> tuple[Any, Any]:
    """24 populations of 32 units, 80 connections of delay 0 to 4."""
    generator = np.random.default_rng(0)
    graph = PopulationGraph(rngs)
    graph.add_input("p0", 32, input_from="sensors", activation=nnx.tanh)
    for index in range(1, 23):
        graph.add_population(f"p{index}", 32, activation=nnx.tanh)
    graph.add_output("p23", 32, activation=nnx.tanh)
    for _ in range(80):
        source, target = sorted(int(end) for end in generator.integers(0, 24, 2))
        delay = int(generator.integers(0, 5))
        if generator.random() < 0.4:
            source, target = target, source
        # What closes a loop has to take time.
        graph.connect(f"p{source}", f"p{target}", delay=max(delay, int(source >= target)))
    graph.finalize()
    trunk = [Splitter(sensors=32), graph, Flattener(), Dense(32, 8, rngs)]
    return _policy(32, trunk, rngs), np.zeros(32, np.float32)


def wide_mlp(rngs: nnx.Rngs) -> tuple[Any, Any]:
    """Layers of 512, 256 and 128 with swish, 48 inputs and 12 actions, no normalizer."""
    network = make_mlp_actor_critic(
        48, 12, [512, 256, 128], [8], rngs, activation="swish", normalize_obs=False
    )
    return network, np.zeros(48, np.float32)


CASES: dict[str, Callable[[nnx.Rngs], tuple[Any, Any]]] = {
    "mlp 4x64": mlp,
    "lstm 64": lstm,
    "graph 3 populations": small_graph,
    "graph 24 populations": large_graph,
    "mlp 512-256-128 swish": wide_mlp,
}


def build(case: str) -> tuple[Any, Any]:
    """Returns the network of a case, with values as after training, and an observation."""
    network, observation = CASES[case](nnx.Rngs(0))
    generator = np.random.default_rng(0)
    for path, parameter in nnx.iter_graph(network):
        # A fresh layer's biases are zeros, which an export may drop; no trained one's are.
        if isinstance(parameter, nnx.Param) and path[-1] == "bias":
            parameter[...] = jnp.asarray(generator.normal(0.0, 0.1, parameter.shape), jnp.float32)
    for _, module in nnx.iter_modules(network):
        if isinstance(module, Normalizer):
            seen = generator.normal(0.3, 1.7, (16, 32, *observation.shape))
            module.update_statistics(jnp.asarray(seen, jnp.float32))
    return network, observation


def _policy(size: int, actor: list[Any], rngs: nnx.Rngs) -> Sequential:
    sampler = NormalTanhSampler(rngs, entropy_weight=1e-2)
    critic = make_mlp([size, 8, 1], rngs, activation_last_layer=False)
    return Sequential(
        [Normalizer(size), PPOAdapter(action=Sequential([*actor, sampler]), value=critic)]
    )
