"""Networks of every kind that the library can build, trained enough to have real statistics."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
from flax import nnx

from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.delay import Delay
from nnx_ppo.networks.factories import make_mlp, make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import GRU, LSTM
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Filter, Flattener, Map, Merge, Scale
from nnx_ppo.networks.variational import AR1VariationalBottleneck, VariationalBottleneck

OBS = 8


def sampler(rngs):
    return NormalTanhSampler(rngs, entropy_weight=1e-2)


def with_statistics(network, observation, seed=0):
    """Give every normalizer statistics, and every bias a value, as training would."""
    generator = np.random.default_rng(seed)
    for _, module in nnx.iter_modules(network):
        if isinstance(module, Normalizer):
            batch = jax.tree.map(
                lambda leaf: jp.asarray(
                    generator.normal(0.3, 1.7, (16, 32, *leaf.shape)), jp.float32
                ),
                observation,
            )
            module.update_statistics(batch)
        if isinstance(module, nnx.Linear) and module.bias is not None:
            bias = module.bias
            bias[...] = jp.asarray(generator.normal(0.0, 0.1, bias.shape), jp.float32)
    return network


def trunk_policy(trunk, size, rngs, critic=None):
    """Normalizer, a trunk, an actor head with a sampler, and a critic."""
    return Sequential(
        [
            Normalizer(OBS),
            PPOAdapter(
                action=Sequential([*trunk, Dense(size, 4, rngs), sampler(rngs)]),
                value=critic or make_mlp([OBS, 16, 1], rngs, activation_last_layer=False),
            ),
        ]
    )


def mlp(rngs):
    return make_mlp_actor_critic(OBS, 2, [32, 32], [32], rngs, activation=nnx.swish)


def lstm(rngs):
    return trunk_policy([LSTM(OBS, 24, rngs)], 24, rngs)


def plain_lstm_trainable(rngs):
    layer = LSTM(OBS, 24, rngs, use_optimized=False, trainable_initial_state=True)
    layer.initial_h[...] = jp.linspace(-0.5, 0.5, 24)
    return trunk_policy([layer], 24, rngs)


def gru(rngs):
    return trunk_policy([GRU(OBS, 24, rngs)], 24, rngs)


def delay(rngs):
    line = Delay(jp.zeros(OBS), 3, initial_value=0.25)
    return trunk_policy([line, Dense(OBS, 16, rngs, activation=nnx.tanh)], 16, rngs)


def critic_lstm(rngs):
    critic = Sequential([LSTM(OBS, 40, rngs), Dense(40, 1, rngs)])
    return trunk_policy([Dense(OBS, 16, rngs, activation=nnx.relu)], 16, rngs, critic)


def variational(rngs):
    layers = [Dense(OBS, 12, rngs), VariationalBottleneck(6, rngs)]
    return trunk_policy(layers, 6, rngs)


def ar1(rngs):
    layers = [LSTM(OBS, 12, rngs), AR1VariationalBottleneck(6, rngs, ar1_weight=0.3)]
    return trunk_policy(layers, 6, rngs)


def population_graph(rngs):
    """Self-connection, delays 1 to 3, a delayed LSTM as a transform, two outputs."""
    graph = PopulationGraph(rngs)
    graph.add_input("sensory", OBS, input_from="obs")
    graph.add_population("inter", 16, activation=nnx.tanh)
    graph.add_population("slow", 10, activation=nnx.tanh)
    graph.add_output("motor", 4)
    graph.connect("sensory", "inter")
    graph.connect("inter", "inter", delay=1)
    graph.connect("sensory", "slow", transform=LSTM(OBS, 10, rngs), delay=2)
    graph.connect("inter", "slow", delay=3, reciprocal=True)
    graph.connect("slow", "motor", delay=1)
    graph.connect("inter", "motor")
    graph.finalize()
    return Sequential(
        [
            Normalizer(OBS),
            PPOAdapter(
                action=Sequential(
                    [
                        Filter({"obs": lambda x: x}),
                        graph,
                        Filter({"motor": "motor"}),
                        Flattener(),
                        sampler(rngs),
                    ]
                ),
                value=make_mlp([OBS, 16, 1], rngs, activation_last_layer=False),
            ),
        ]
    )


TWO_ARM_OBSERVATION = {
    "arm_L": {"proprioception": np.zeros(6, np.float32), "touch": np.zeros(3, np.float32)},
    "arm_R": {"proprioception": np.zeros(6, np.float32), "touch": np.zeros(3, np.float32)},
    "critic_only": np.zeros(5, np.float32),
    "goal": np.zeros(2, np.float32),
}


def two_arm(rngs):
    """Nested observations, a recurrent trunk per arm, two heads, a privileged critic."""

    def arm(name):
        return Sequential(
            [
                Filter({"own": name, "goal": "goal"}),
                Flattener(),
                GRU(11, 12, rngs),
                Dense(12, 4, rngs),
            ]
        )

    return PPOAdapter(
        action=Sequential(
            [
                Merge(left=Parallel(arm_L=arm("arm_L")), right=Parallel(arm_R=arm("arm_R"))),
                Map({"arm_L": Scale(0.7), "arm_R": Scale(1.0)}),
                Map({"arm_L": sampler(rngs), "arm_R": sampler(rngs)}),
            ]
        ),
        value=Map(
            {
                "critic_only": make_mlp([5, 8, 1], rngs, activation_last_layer=False),
            }
        ),
    )


class LeakyMemory(StatefulModule):
    """A user's module: layer norm, a leaky trace, a step counter and a window of past inputs."""

    def __init__(self, size, rngs):
        self.norm = nnx.LayerNorm(size, rngs=rngs)
        self.mix = nnx.Linear(2 * size, size, rngs=rngs)
        self.size = size

    def initialize_state(self, batch_size):
        return {
            "trace": jp.zeros((batch_size, self.size)),
            "count": jp.zeros((batch_size,), jp.int32),
            "seen": jp.zeros((batch_size,), bool),
        }

    def reset_state(self, prev_state):
        return jax.tree.map(jp.zeros_like, prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        x = self.norm(obs)
        fresh = (module_state["count"] % 7 == 0) | ~module_state["seen"]
        trace = jp.where(fresh[:, None], 0.5 * x, 0.9 * module_state["trace"] + 0.1 * x)
        y = nnx.gelu(self.mix(jp.concatenate([x, trace], axis=-1)))
        state = {
            "trace": trace,
            "count": module_state["count"] + 1,
            "seen": jp.ones_like(module_state["seen"]),
        }
        return StatefulModuleOutput(state, y, jp.array(0.0), {})


def user_module(rngs):
    return trunk_policy([LeakyMemory(OBS, rngs)], OBS, rngs)


FLAT = np.zeros(OBS, np.float32)

NETWORKS = {
    "mlp": (mlp, FLAT),
    "lstm": (lstm, FLAT),
    "plain_lstm_trainable": (plain_lstm_trainable, FLAT),
    "gru": (gru, FLAT),
    "delay": (delay, FLAT),
    "critic_lstm": (critic_lstm, FLAT),
    "variational": (variational, FLAT),
    "ar1": (ar1, FLAT),
    "population_graph": (population_graph, FLAT),
    "two_arm": (two_arm, TWO_ARM_OBSERVATION),
    "user_module": (user_module, FLAT),
}


def make(name, seed=0):
    """Build a network by name; returns it with one example observation."""
    factory, observation = NETWORKS[name]
    return with_statistics(factory(nnx.Rngs(seed)), observation), observation
