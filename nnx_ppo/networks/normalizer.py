"""Normalization of observations by their running mean and standard deviation."""

import operator
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx

from nnx_ppo.networks.canonical import canonicalize, is_namedtuple, require_same_structure
from nnx_ppo.networks.regularization import no_regularization
from nnx_ppo.networks.types import ModuleState, StatefulModule, StatefulModuleOutput

INITIAL_STD = 10.0
"""Standard deviation assumed before any data was seen: large, so that outputs start small."""

MAX_REMEMBERED_BATCHES = 2**20
"""Older data is gradually forgotten once it outweighs a batch by this factor.

A float32 counter could not count the batch beyond that, and the mean would drift from the variance.
"""


class NormalizerStatistics(nnx.Variable):
    """Running statistics: neither trained by gradients nor part of the carry."""


class Normalizer(StatefulModule):
    """Subtracts the running mean of each feature and divides by its standard deviation.

    Statistics are merged batch by batch (Chan, Golub and LeVeque, 1983, "Algorithms for computing
    the sample variance"). They change only in ``update_statistics``; until then the mean is zero
    and the standard deviation ten.

    Attributes:
        mean: Mean of each feature, in the structure of the observation.
        M2: Sum of squared deviations from the mean, in the same structure.
        counter: Number of observations seen, a float32 scalar.
    """

    def __init__(self, shape: Any):
        """Creates the statistics.

        Args:
            shape: Shape of one observation without batch axis: an int, a tuple or list of ints, or
                a pytree of those (``{"joints": 7, "image": (8, 8)}``). A plain tuple or list of
                ints is always one shape.
        """
        zeros = jax.tree.map(
            lambda leaf: jp.zeros(_as_shape(leaf), jp.float32),
            canonicalize(shape),
            is_leaf=_is_shape,
        )
        self.mean = NormalizerStatistics(zeros)
        self.M2 = NormalizerStatistics(jax.tree.map(jp.zeros_like, zeros))
        self.counter = NormalizerStatistics(jp.zeros((), jp.float32))
        self.epsilon = 1e-6

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Returns the normalized observation in plain containers; extras are the plain input.

        Raises:
            ValueError: structure or feature shape of ``obs`` differ from those at construction.
        """
        obs = canonicalize(obs)
        mean = self.mean.get_value()
        counter = self.counter.get_value()
        require_same_structure("Normalizer", mean, obs)

        def normalize(path: Any, mean: jax.Array, m2: jax.Array, value: Any) -> jax.Array:
            if value.shape[value.ndim - mean.ndim :] != mean.shape:
                raise ValueError(
                    f"Normalizer: observation{jax.tree_util.keystr(path)} has shape {value.shape}, "
                    f"expected (batch, {', '.join(map(str, mean.shape))})"
                )
            variance = jp.maximum(m2 / jp.maximum(counter, 1.0), self.epsilon)
            std = jp.where(counter == 0, INITIAL_STD, jp.sqrt(variance))
            return (value.astype(mean.dtype) - mean) / std

        output = jax.tree_util.tree_map_with_path(normalize, mean, self.M2.get_value(), obs)
        return StatefulModuleOutput(module_state, output, no_regularization(), {}, obs)

    def update_statistics(self, rollout_extras: Any) -> None:
        """Merges a rollout's observations into the statistics.

        Args:
            rollout_extras: Observations, leaves ``[time, batch, *feature]``.

        Raises:
            ValueError: the structure differs from the one at construction.
        """
        data = canonicalize(rollout_extras)
        mean, m2 = self.mean.get_value(), self.M2.get_value()
        require_same_structure("Normalizer.update_statistics", mean, data)
        flat = jax.tree.map(
            lambda mean, x: jp.reshape(x, (-1, *mean.shape)).astype(mean.dtype), mean, data
        )
        batch_count = jax.tree.leaves(flat)[0].shape[0]
        seen = self.counter.get_value()
        old_count = jp.minimum(seen, float(MAX_REMEMBERED_BATCHES * batch_count))
        kept = old_count / jp.maximum(seen, 1.0)
        new_count = old_count + batch_count

        batch_mean = jax.tree.map(lambda x: jp.mean(x, axis=0), flat)
        delta = jax.tree.map(jp.subtract, batch_mean, mean)

        def merge_m2(m2: jax.Array, x: jax.Array, x_mean: jax.Array, delta: jax.Array) -> jax.Array:
            batch_m2 = jp.sum(jp.square(x - x_mean), axis=0)
            between = jp.square(delta) * (old_count * (batch_count / new_count))
            return m2 * kept + batch_m2 + between

        new_mean = jax.tree.map(
            lambda mean, delta: mean + delta * (batch_count / new_count), mean, delta
        )
        self.mean.set_value(new_mean)
        self.M2.set_value(jax.tree.map(merge_m2, m2, flat, batch_mean, delta))
        self.counter.set_value(new_count)


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__")


def _is_shape(value: Any) -> bool:
    """Whether a value is one array's shape; a named tuple of ints is a structure instead."""
    if isinstance(value, list | tuple) and not is_namedtuple(value):
        return all(map(_is_int, value))
    return _is_int(value)


def _as_shape(value: Any) -> tuple[int, ...]:
    if not _is_shape(value):
        raise TypeError(
            f"Normalizer: expected an int, a tuple of ints or a pytree of those, found {value!r}"
        )
    if isinstance(value, list | tuple):
        return tuple(map(operator.index, value))
    return (operator.index(value),)
