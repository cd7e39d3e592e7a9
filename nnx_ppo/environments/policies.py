"""Networks for the built-in environments; checkpoints can record each as a factory."""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from nnx_ppo.environments.two_arm import ARMS
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Parallel, Sequential, Splitter
from nnx_ppo.networks.factories import make_mlp_actor_critic, make_mlp_layers
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.utils import Filter, Flattener, Map, Merge

ENTROPY_WEIGHT = 1e-2
MIN_STD = 0.1

SENSOR_DELAYS = (0, 1, 2, 3)
# Differences between readings a few steps apart are small beside the readings themselves.
MOTION_GAIN = 3.0
# Below 1, so that what the hidden population remembers fades instead of echoing at first.
SELF_CONNECTION_SCALE = 0.1


def make_delayed_graph_policy(
    observation_size: int,
    action_size: int,
    rngs: nnx.Rngs,
    hidden_size: int = 64,
    sensor_features: int = 32,
    entropy_weight: float = ENTROPY_WEIGHT,
    min_std: float = MIN_STD,
) -> Sequential:
    """Returns a policy and a critic that are population graphs with delayed connections.

    Args:
        observation_size: Width of the observation.
        action_size: Number of actions.
        rngs: Source of the initial weights and of the sampling noise.
        hidden_size: Units of the hidden population of either graph.
        sensor_features: Units of the populations for posture and for motion.
        entropy_weight: Factor of the entropy bonus.
        min_std: Smallest standard deviation of an action before tanh.
    """

    def graph(output_size: int) -> Sequential:
        return Sequential(
            [
                Splitter(sensors=observation_size),
                make_motion_graph(
                    observation_size, output_size, rngs, hidden_size, sensor_features
                ),
                Flattener(),
            ]
        )

    actor, critic = graph(2 * action_size), graph(1)
    sampler = NormalTanhSampler(rngs, entropy_weight, min_std=min_std)
    return Sequential(
        [
            Normalizer(observation_size),
            PPOAdapter(action=Sequential([*actor.layers, sampler]), value=critic),
        ]
    )


def make_motion_graph(
    observation_size: int,
    output_size: int,
    rngs: nnx.Rngs,
    hidden_size: int,
    sensor_features: int,
) -> PopulationGraph:
    """Returns a graph that can see motion in readings that do not contain it.

    ``sensors`` reach ``posture`` at once, and ``motion`` at once and one, two and three steps
    later. The latter weights start with a mean of zero over the delays, so that what rests cancels
    and what moves remains; training is free to change that. ``hidden`` integrates both and
    itself of one step ago. Past commands are not fed back: nothing bounds them, so training grows
    a loop that amplifies rounding, and two formats drift apart by more than their rounding.

    Args:
        observation_size: Width of the input ``sensors``.
        output_size: Width of the output ``command``.
        rngs: Source of the initial weights.
        hidden_size: Units of ``hidden``.
        sensor_features: Units of ``posture`` and of ``motion``.
    """
    graph = PopulationGraph(rngs)
    graph.add_input("sensors", observation_size, input_from="sensors")
    graph.add_population("posture", sensor_features, activation=nnx.tanh)
    graph.add_population("motion", sensor_features, activation=nnx.tanh)
    graph.add_population("hidden", hidden_size, activation=nnx.tanh)
    graph.add_output("command", output_size)

    graph.connect("sensors", "posture")
    for delay, transform in zip(
        SENSOR_DELAYS, _motion_transforms(observation_size, sensor_features, rngs), strict=True
    ):
        graph.connect("sensors", "motion", transform=transform, delay=delay)
    graph.connect("posture", "hidden")
    graph.connect("motion", "hidden")
    fading = nnx.initializers.variance_scaling(SELF_CONNECTION_SCALE, "fan_in", "normal")
    graph.connect(
        "hidden",
        "hidden",
        transform=Dense(hidden_size, hidden_size, rngs, use_bias=False, kernel_init=fading),
        delay=1,
    )
    graph.connect("hidden", "command")
    graph.finalize()
    return graph


def _motion_transforms(in_features: int, out_features: int, rngs: nnx.Rngs) -> list[Dense]:
    shape = (len(SENSOR_DELAYS), in_features, out_features)
    kernels = jax.random.normal(rngs.params(), shape)
    kernels = (kernels - kernels.mean(axis=0)) * (MOTION_GAIN / in_features**0.5)
    transforms = []
    for delay, kernel in zip(SENSOR_DELAYS, kernels, strict=True):
        transform = Dense(in_features, out_features, rngs, use_bias=delay == 0)
        transform.linear.kernel[...] = kernel
        transforms.append(transform)
    return transforms


def make_memoryless_policy(
    observation_size: int,
    action_size: int,
    rngs: nnx.Rngs,
    hidden_sizes: Sequence[int] = (92, 92),
    entropy_weight: float = ENTROPY_WEIGHT,
    min_std: float = MIN_STD,
) -> Sequential:
    """Returns perceptrons of the size of ``make_delayed_graph_policy`` for comparison.

    They see one observation and nothing else. Arguments as there, and ``hidden_sizes`` for policy
    and critic.
    """
    return make_mlp_actor_critic(
        observation_size,
        action_size,
        list(hidden_sizes),
        list(hidden_sizes),
        rngs,
        activation="tanh",
        entropy_weight=entropy_weight,
        min_std=min_std,
    )


def make_two_arm_policy(
    observation_size: Any,
    action_size: Any,
    rngs: nnx.Rngs,
    hidden_sizes: Sequence[int] = (64, 64),
    entropy_weight: float = ENTROPY_WEIGHT,
    min_std: float = MIN_STD,
) -> Sequential:
    """Returns a policy for ``TwoArm`` with a head per arm, and a critic with a value per arm.

    Each arm sees itself and what both share; the critic sees everything.

    Args:
        observation_size: Widths of the observation, ``TwoArm.observation_size``.
        action_size: Number of actions of each arm, ``TwoArm.action_size``.
        rngs: Source of the initial weights and of the sampling noise.
        hidden_sizes: Hidden layers of each arm's head and of the critic.
        entropy_weight: Factor of the entropy bonus.
        min_std: Smallest standard deviation of an action before tanh.
    """
    hidden_sizes = list(hidden_sizes)

    def width(*parts: str) -> int:
        return sum(jax.tree.leaves([observation_size[part] for part in parts]))

    def head(arm: str) -> Sequential:
        return Sequential(
            [
                Filter({"own": arm, "shared": "root"}),
                Flattener(),
                *make_mlp_layers([width(arm, "root"), *hidden_sizes], rngs, nnx.tanh),
                Parallel({arm: Dense(hidden_sizes[-1], 2 * action_size[arm], rngs)}),
            ]
        )

    actor = Sequential(
        [
            Merge({arm: head(arm) for arm in ARMS}),
            Map({arm: NormalTanhSampler(rngs, entropy_weight, min_std=min_std) for arm in ARMS}),
        ]
    )
    critic = Sequential(
        [
            Flattener(),
            *make_mlp_layers([width(*ARMS, "root"), *hidden_sizes], rngs, nnx.tanh),
            Parallel({arm: Dense(hidden_sizes[-1], 1, rngs) for arm in ARMS}),
        ]
    )
    return Sequential([Normalizer(observation_size), PPOAdapter(action=actor, value=critic)])
