"""Functions that build common networks."""

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import jax
from flax import nnx

from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.types import StatefulModule
from nnx_ppo.networks.utils import Flattener

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "swish": nnx.swish,
    "tanh": nnx.tanh,
    "relu": nnx.relu,
}
"""Activations that can be named by a string."""


def make_mlp_layers(
    sizes: Sequence[int],
    rngs: nnx.Rngs,
    activation: Callable[..., Any] = nnx.relu,
    activation_last_layer: bool = True,
    **linear_kwargs: Any,
) -> list[Dense]:
    """Returns the layers of a multilayer perceptron.

    Args:
        sizes: Size of the input and of each layer's output.
        rngs: Source of the initial weights.
        activation: Elementwise function after each layer.
        activation_last_layer: Whether the last layer has it too; otherwise that layer is linear.
        **linear_kwargs: Passed on to ``flax.nnx.Linear``.
    """
    last = len(sizes) - 2
    return [
        Dense(
            sizes[index],
            sizes[index + 1],
            rngs,
            activation if index < last or activation_last_layer else None,
            **linear_kwargs,
        )
        for index in range(len(sizes) - 1)
    ]


def make_mlp(
    sizes: Sequence[int],
    rngs: nnx.Rngs,
    activation: Callable[..., Any] = nnx.relu,
    activation_last_layer: bool = True,
    **linear_kwargs: Any,
) -> Sequential:
    """Returns a multilayer perceptron; arguments as in ``make_mlp_layers``."""
    return Sequential(
        make_mlp_layers(sizes, rngs, activation, activation_last_layer, **linear_kwargs)
    )


def make_mlp_actor_critic(
    obs_size: Any,
    action_size: int,
    actor_hidden_sizes: Sequence[int],
    critic_hidden_sizes: Sequence[int],
    rngs: nnx.Rngs,
    activation: Callable[..., Any] | str = nnx.relu,
    normalize_obs: bool = True,
    initializer_scale: SupportsFloat = 1.0,
    entropy_weight: SupportsFloat = 1e-2,
    min_std: SupportsFloat = 1e-1,
    std_scale: SupportsFloat = 1.0,
) -> Any:
    """Returns a Gaussian policy and a critic, each a perceptron of its own.

    Args:
        obs_size: Size of the observation, or anything ``Normalizer`` takes; observations with
            structure are flattened after normalization.
        action_size: Number of actions.
        actor_hidden_sizes: Sizes of the policy's hidden layers.
        critic_hidden_sizes: Sizes of the critic's hidden layers.
        rngs: Source of the initial weights and of the sampling noise.
        activation: Activation of the hidden layers: a function, or ``"swish"``, ``"tanh"``,
            ``"relu"``.
        normalize_obs: Whether observations are normalized by running statistics.
        initializer_scale: Variance scale of the kernels.
        entropy_weight: Factor of the entropy bonus.
        min_std: Smallest standard deviation of the action before tanh.
        std_scale: Factor of that standard deviation.

    Returns:
        ``Sequential`` of normalizer, flattener (only where the observation has structure) and
        ``PPOAdapter``; the bare adapter if neither of the first two is needed.

    Raises:
        KeyError: ``activation`` is an unknown name.
    """
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise KeyError(f"unknown activation {activation!r}; known are {sorted(ACTIVATIONS)}")
        activation = ACTIVATIONS[activation]
    kernel_init = nnx.initializers.variance_scaling(float(initializer_scale), "fan_in", "uniform")
    # The statistics' shapes are the one place where a size specification is interpreted.
    normalizer = Normalizer(obs_size)
    shapes = [leaf.shape for leaf in jax.tree.leaves(normalizer.mean.get_value())]
    features = sum(math.prod(shape) for shape in shapes)

    actor = make_mlp_layers(
        [features, *actor_hidden_sizes, 2 * action_size],
        rngs,
        activation,
        activation_last_layer=False,
        kernel_init=kernel_init,
    )
    critic = make_mlp(
        [features, *critic_hidden_sizes, 1],
        rngs,
        activation,
        activation_last_layer=False,
        kernel_init=kernel_init,
    )
    sampler = NormalTanhSampler(rngs, entropy_weight, min_std=min_std, std_scale=std_scale)
    adapter = PPOAdapter(action=Sequential([*actor, sampler]), value=critic)

    layers: list[StatefulModule] = [normalizer] if normalize_obs else []
    if shapes != [(features,)]:
        layers.append(Flattener())
    return Sequential([*layers, adapter]) if layers else adapter
