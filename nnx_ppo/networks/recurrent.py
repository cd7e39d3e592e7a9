"""Recurrent layers around Flax's cells."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Float

from nnx_ppo.networks.types import (
    AnyArray,
    BatchSize,
    ModuleState,
    StatefulModule,
    StatefulModuleOutput,
)


class LSTM(StatefulModule):
    """A long short-term memory layer (Hochreiter and Schmidhuber, 1997).

    The carry is the pair of ``(batch, hidden_features)`` arrays of the Flax cell, which orders it
    as memory, then hidden output: the layer's output equals the second entry.

    Attributes:
        cell: The Flax cell.
        initial_h: Trained initial value of the carry's first entry, ``(hidden_features,)``; present
            only with ``trainable_initial_state``.
        initial_c: The same for the second entry.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: nnx.Rngs,
        *,
        gate_fn: Callable[..., Any] = nnx.sigmoid,
        activation_fn: Callable[..., Any] = nnx.tanh,
        kernel_init: Callable[..., Any] | None = None,
        recurrent_kernel_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] | None = None,
        use_optimized: bool = True,
        trainable_initial_state: bool = False,
    ):
        """Creates the layer.

        Args:
            in_features: Size of the input.
            hidden_features: Size of memory and output.
            rngs: Source of the initial weights.
            gate_fn: Activation of the gates.
            activation_fn: Activation of memory update and output.
            kernel_init: Initializer of the input's weights; None for Flax's default.
            recurrent_kernel_init: The same for the recurrent weights.
            bias_init: The same for the biases.
            use_optimized: Whether to use the cell with all gates in one matrix product.
            trainable_initial_state: Whether episodes start from trained values instead of zeros.
        """
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.use_optimized = use_optimized
        self.trainable_initial_state = trainable_initial_state
        cell_class = nnx.OptimizedLSTMCell if use_optimized else nnx.LSTMCell
        self.cell: Any = cell_class(
            in_features,
            hidden_features,
            gate_fn=gate_fn,
            activation_fn=activation_fn,
            rngs=rngs,
            **_given(
                kernel_init=kernel_init,
                recurrent_kernel_init=recurrent_kernel_init,
                bias_init=bias_init,
            ),
        )
        if trainable_initial_state:
            self.initial_h = nnx.Param(jp.zeros((hidden_features,)))
            self.initial_c = nnx.Param(jp.zeros((hidden_features,)))

    def __call__(
        self,
        module_state: ModuleState,
        obs: Float[AnyArray, "batch features"],
        rollout_extras: Any = None,
    ) -> StatefulModuleOutput:
        """Returns the hidden output ``(batch, hidden_features)``."""
        next_state, output = self.cell(module_state, jp.asarray(obs))
        return StatefulModuleOutput(next_state, output, jp.zeros(output.shape[:1]), {})

    def initialize_state(self, batch_size: BatchSize) -> tuple[jax.Array, jax.Array]:
        """Returns the pair of initial values, each ``(batch_size, hidden_features)``."""
        zeros = jp.zeros((batch_size, self.hidden_features))
        return self.reset_state((zeros, zeros))

    def reset_state(self, prev_state: ModuleState) -> tuple[jax.Array, jax.Array]:
        """Returns the initial values in the shapes of the given pair."""
        first, second = prev_state
        if self.trainable_initial_state:
            return _filled(self.initial_h, first), _filled(self.initial_c, second)
        return jp.zeros_like(first), jp.zeros_like(second)


class GRU(StatefulModule):
    """A gated recurrent unit layer (Cho et al., 2014).

    The carry is the array ``(batch, hidden_features)`` of the hidden output.

    Attributes:
        cell: The Flax cell.
        initial_h: Trained initial value of the carry, ``(hidden_features,)``; present only with
            ``trainable_initial_state``.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: nnx.Rngs,
        *,
        gate_fn: Callable[..., Any] = nnx.sigmoid,
        activation_fn: Callable[..., Any] = nnx.tanh,
        kernel_init: Callable[..., Any] | None = None,
        recurrent_kernel_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] | None = None,
        trainable_initial_state: bool = False,
    ):
        """Creates the layer; arguments as for ``LSTM``."""
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.trainable_initial_state = trainable_initial_state
        self.cell: Any = nnx.GRUCell(
            in_features,
            hidden_features,
            gate_fn=gate_fn,
            activation_fn=activation_fn,
            rngs=rngs,
            **_given(
                kernel_init=kernel_init,
                recurrent_kernel_init=recurrent_kernel_init,
                bias_init=bias_init,
            ),
        )
        if trainable_initial_state:
            self.initial_h = nnx.Param(jp.zeros((hidden_features,)))

    def __call__(
        self,
        module_state: ModuleState,
        obs: Float[AnyArray, "batch features"],
        rollout_extras: Any = None,
    ) -> StatefulModuleOutput:
        """Returns the hidden output ``(batch, hidden_features)``."""
        next_state, output = self.cell(module_state, jp.asarray(obs))
        return StatefulModuleOutput(next_state, output, jp.zeros(output.shape[:1]), {})

    def initialize_state(self, batch_size: BatchSize) -> jax.Array:
        """Returns the initial value ``(batch_size, hidden_features)``."""
        return self.reset_state(jp.zeros((batch_size, self.hidden_features)))

    def reset_state(self, prev_state: ModuleState) -> jax.Array:
        """Returns the initial value in the shape of the given carry."""
        if self.trainable_initial_state:
            return _filled(self.initial_h, prev_state)
        return jp.zeros_like(prev_state)


def _given(**initializers: Callable[..., Any] | None) -> dict[str, Any]:
    # Passing None on would mean "no initializer" to Flax, not its default.
    return {name: value for name, value in initializers.items() if value is not None}


def _filled(initial: nnx.Param, like: AnyArray) -> jax.Array:
    return jp.broadcast_to(initial[...].astype(like.dtype), like.shape)
