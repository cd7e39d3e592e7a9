"""Fully connected layers."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jp
from flax import nnx
from jaxtyping import Num

from nnx_ppo.networks.regularization import no_regularization
from nnx_ppo.networks.types import AnyArray, ModuleState, StatefulModule, StatefulModuleOutput


class Dense(StatefulModule):
    """A linear map followed by an optional activation; keeps no carry."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rngs: nnx.Rngs,
        activation: Callable[..., Any] | None = None,
        **linear_kwargs: Any,
    ):
        """Creates the layer.

        Args:
            in_features: Size of the input's last axis.
            out_features: Size of the output's last axis.
            rngs: Source of the initial weights.
            activation: Elementwise function of the linear map's result, or None.
            **linear_kwargs: Passed on to ``flax.nnx.Linear``.
        """
        self.in_features = in_features
        self.out_features = out_features
        self.linear = nnx.Linear(in_features, out_features, rngs=rngs, **linear_kwargs)
        self.activation = activation

    def __call__(
        self,
        module_state: ModuleState,
        obs: Num[AnyArray, "*batch features"],
        rollout_extras: Any = None,
    ) -> StatefulModuleOutput:
        """Returns ``activation(obs @ kernel + bias)``; the carry passes through unchanged."""
        output = self.linear(jp.asarray(obs))
        if self.activation is not None:
            output = self.activation(output)
        return StatefulModuleOutput(module_state, output, no_regularization(), {})
