"""How a buffer of past values is laid out, read and written.

A buffer has shape ``(batch, depth, *leaf)`` and holds the last ``depth`` values of one array.
Two layouts hold the same values. Training uses the ring: a write touches one slot and a pointer
per environment says which. An exported step keeps the values in time order instead: reading a
fixed delay is then a fixed slice, no index arithmetic is left, and a reset row equals a fresh one.
"""

import abc

import jax
import jax.numpy as jp
from jax import lax
from jaxtyping import Int32, Shaped

from nnx_ppo.networks.types import AnyArray, BatchSize

Buffer = Shaped[AnyArray, "batch depth *leaf"]
Pointer = Int32[AnyArray, "*batch"] | None


class DelayLine(abc.ABC):
    """Layout of a delay buffer. Instances hold no state and compare equal by class.

    ``read``, ``push`` and ``advance`` work on batched arrays, ``reset_pointer`` also on the slice
    of one environment. All trace with a symbolic batch size.
    """

    @abc.abstractmethod
    def initial_pointer(self, batch_size: BatchSize) -> jax.Array | None:
        """Returns the pointers ``(batch,)`` of fresh environments, or None where none is kept."""

    @abc.abstractmethod
    def read(self, buffer: Buffer, pointer: Pointer, delay: int) -> jax.Array:
        """Returns the value pushed ``delay`` steps ago.

        Args:
            buffer: ``(batch, depth, *leaf)``, any dtype.
            pointer: ``(batch,)`` int32, or None where the layout keeps none.
            delay: Number of steps, 1 to ``depth``; 1 is the newest value.

        Returns:
            The values ``(batch, *leaf)``.
        """

    @abc.abstractmethod
    def push(
        self, buffer: Buffer, pointer: Pointer, value: Shaped[AnyArray, "batch *leaf"]
    ) -> jax.Array:
        """Returns the buffer with ``value`` as its newest entry and its oldest entry gone."""

    @abc.abstractmethod
    def advance(self, pointer: Pointer, depth: int) -> jax.Array | None:
        """Returns the pointers after one push into a buffer of the given depth."""

    @abc.abstractmethod
    def reset_pointer(self, pointer: Pointer) -> jax.Array | None:
        """Returns the pointers of fresh environments in the shape of the given ones."""

    def __eq__(self, other: object) -> bool:
        # A deep copy of a module must not look like a different program to jit.
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RingDelayLine(DelayLine):
    """A ring: the pointer names the slot written next, the value of k steps ago is k before it."""

    def initial_pointer(self, batch_size: BatchSize) -> jax.Array:
        return jp.zeros((batch_size,), jp.int32)

    def read(self, buffer: Buffer, pointer: Pointer, delay: int) -> jax.Array:
        slot = _wrap(_required(pointer) + (buffer.shape[1] - delay), buffer.shape[1])
        rows = jp.arange(buffer.shape[0], dtype=jp.int32)
        # Both indices are in range by construction; saying so spares clamping and wrapping.
        return (
            jp.asarray(buffer)
            .at[rows, slot]
            .get(mode="promise_in_bounds", wrap_negative_indices=False)
        )

    def push(
        self, buffer: Buffer, pointer: Pointer, value: Shaped[AnyArray, "batch *leaf"]
    ) -> jax.Array:
        # A select instead of a scatter: it fuses, and scatters are slow on CPUs.
        slots = jp.arange(buffer.shape[1], dtype=jp.int32)
        newest = _required(pointer)[:, None] == slots[None, :]
        newest = newest.reshape(newest.shape + (1,) * (buffer.ndim - 2))
        return jp.where(newest, value[:, None], buffer)

    def advance(self, pointer: Pointer, depth: int) -> jax.Array:
        return _wrap(_required(pointer) + 1, depth)

    def reset_pointer(self, pointer: Pointer) -> jax.Array:
        return jp.zeros_like(_required(pointer))


class TimeOrderedDelayLine(DelayLine):
    """Newest first: slot ``k - 1`` holds the value of k steps ago and there is no pointer."""

    def initial_pointer(self, batch_size: BatchSize) -> None:
        return None

    def read(self, buffer: Buffer, pointer: Pointer, delay: int) -> jax.Array:
        return lax.index_in_dim(jp.asarray(buffer), delay - 1, axis=1, keepdims=False)

    def push(
        self, buffer: Buffer, pointer: Pointer, value: Shaped[AnyArray, "batch *leaf"]
    ) -> jax.Array:
        if buffer.shape[1] == 1:
            return jp.asarray(value[:, None])
        # Not buffer[:, :-1], which becomes a gather when the batch size is symbolic.
        older = lax.slice_in_dim(jp.asarray(buffer), 0, buffer.shape[1] - 1, axis=1)
        return jp.concatenate([value[:, None], older], axis=1)

    def advance(self, pointer: Pointer, depth: int) -> None:
        return None

    def reset_pointer(self, pointer: Pointer) -> None:
        return None


def _required(pointer: Pointer) -> jax.Array:
    if pointer is None:
        raise ValueError(
            "a ring delay line needs its pointer, but the carry has none: it looks like a carry in "
            "time order; convert it, or use TIME_ORDERED as the module's delay_line"
        )
    return jp.asarray(pointer)


def _wrap(index: jax.Array, depth: int) -> jax.Array:
    # Operands are never negative, so the remainder needs none of the sign fix-ups of ``%``.
    return lax.rem(index, lax.full_like(index, depth))


RING = RingDelayLine()
"""The layout used in training."""

TIME_ORDERED = TimeOrderedDelayLine()
"""The layout used in exported steps."""
