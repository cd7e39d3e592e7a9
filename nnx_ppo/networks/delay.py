"""A module that returns its input of some steps ago."""

from typing import Any, SupportsFloat

import jax
import jax.numpy as jp

from nnx_ppo.networks.canonical import require_same_structure
from nnx_ppo.networks.delay_line import RING, DelayLine
from nnx_ppo.networks.types import BatchSize, ModuleState, StatefulModule, StatefulModuleOutput


class Delay(StatefulModule):
    """Returns the input of ``k_steps`` steps ago, exactly; any pytree.

    The carry is ``{"buffer": leaves (batch, k_steps, *leaf), "idx": (batch,) int32}``; without
    ``idx`` where the delay line keeps no pointer.

    Attributes:
        delay_line: Layout of the buffer.
    """

    def __init__(self, sample_input: Any, k_steps: int, initial_value: SupportsFloat = 0.0):
        """Creates the delay.

        Args:
            sample_input: One example without batch axis, arrays or ``jax.ShapeDtypeStruct``; only
                its structure, shapes and dtypes are used.
            k_steps: Number of steps, at least 1.
            initial_value: What comes out before the first input does.

        Raises:
            ValueError: ``k_steps`` is below 1.
        """
        if k_steps < 1:
            raise ValueError(f"Delay: k_steps must be at least 1, got {k_steps}")
        self.k_steps = k_steps
        self.initial_value = float(initial_value)
        self.delay_line: DelayLine = RING
        # Shapes instead of the arrays themselves: the example is neither state nor a weight.
        leaves, self.structure = jax.tree.flatten(sample_input)
        self.leaf_types = tuple(
            jax.ShapeDtypeStruct(jp.shape(leaf), jp.result_type(leaf)) for leaf in leaves
        )

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Returns the delayed input.

        Raises:
            ValueError: structure or leaf shapes of ``obs`` differ from the example's.
        """
        self._require_sample(obs)
        buffer, pointer = module_state["buffer"], module_state.get("idx")
        line = self.delay_line
        output = jax.tree.map(lambda leaf: line.read(leaf, pointer, self.k_steps), buffer)
        next_buffer = jax.tree.map(lambda leaf, x: line.push(leaf, pointer, x), buffer, obs)
        batch_shape = jax.tree.leaves(obs)[0].shape[:1]
        return StatefulModuleOutput(
            next_state=_carry(next_buffer, line.advance(pointer, self.k_steps)),
            output=output,
            regularization_loss=jp.zeros(batch_shape),
            metrics={},
        )

    def initialize_state(self, batch_size: BatchSize) -> dict[str, Any]:
        """Returns a buffer full of the initial value."""
        leaves = [
            jp.full((batch_size, self.k_steps, *leaf.shape), self.initial_value, leaf.dtype)
            for leaf in self.leaf_types
        ]
        buffer = jax.tree.unflatten(self.structure, leaves)
        return _carry(buffer, self.delay_line.initial_pointer(batch_size))

    def reset_state(self, prev_state: ModuleState) -> dict[str, Any]:
        """Refills the buffer with the initial value."""
        buffer = jax.tree.map(
            lambda leaf: jp.full_like(leaf, self.initial_value), prev_state["buffer"]
        )
        return _carry(buffer, self.delay_line.reset_pointer(prev_state.get("idx")))

    def _require_sample(self, obs: Any) -> None:
        sample = jax.tree.unflatten(self.structure, self.leaf_types)
        require_same_structure("Delay", sample, obs)
        for (path, expected), leaf in zip(
            jax.tree_util.tree_flatten_with_path(sample)[0], jax.tree.leaves(obs), strict=True
        ):
            if jp.shape(leaf)[1:] != expected.shape:
                raise ValueError(
                    f"Delay: input{jax.tree_util.keystr(path)} has shape {jp.shape(leaf)}, "
                    f"expected a batch of {expected.shape} as in sample_input"
                )


def _carry(buffer: Any, pointer: jax.Array | None) -> dict[str, Any]:
    return {"buffer": buffer} if pointer is None else {"buffer": buffer, "idx": pointer}
