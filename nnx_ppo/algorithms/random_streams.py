"""Networks that draw from random streams of their own."""

from typing import Any, TypeVar

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Key

Module = TypeVar("Module", bound=nnx.Pytree)


def with_streams_from(networks: Module, key: Key[jax.Array, ""]) -> Module:
    """Copies a network and gives the copy random streams derived from ``key``.

    Whatever the copy draws leaves the streams of the original, and so its training, untouched.
    The streams depend on the seeds of the original but not on how often it has drawn, so the
    same weights and key always draw the same.

    Args:
        networks: The network to copy. Weights are shared until one of the two is updated.
        key: Seed of the copy's streams.
    """
    copy = nnx.clone(networks)
    keys = nnx.state(copy, nnx.RngKey)
    counts = nnx.state(copy, nnx.RngCount)
    bits = jax.random.bits(key)

    def derive(stream_key: Any) -> Any:
        # A module vmapped over layers holds an array of keys in one stream.
        fold = jax.random.fold_in
        for _ in range(stream_key.ndim):
            fold = jax.vmap(fold, in_axes=(0, None))
        return fold(stream_key, bits)

    nnx.update(copy, jax.tree.map(derive, keys), jax.tree.map(jp.zeros_like, counts))
    return copy
