"""Bottlenecks that pass a noisy latent and charge for its information."""

from typing import Any, NamedTuple, SupportsFloat

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Float

from nnx_ppo.networks.randomness import peek_key, resolve_stream
from nnx_ppo.networks.types import (
    AnyArray,
    BatchSize,
    ModuleState,
    StatefulModule,
    StatefulModuleOutput,
)


class _Latent(NamedTuple):
    """One step's latent distribution and what was taken from it."""

    mean: jax.Array
    std: jax.Array
    sample: jax.Array
    kl_divergence: jax.Array
    next_keys: jax.Array


class _GaussianBottleneck(StatefulModule):
    """What both bottlenecks share: the distribution, its divergence and the keys of the noise."""

    def __init__(
        self,
        latent_size: int,
        rng: nnx.Rngs | nnx.RngStream,
        kl_weight: SupportsFloat,
        min_std: SupportsFloat,
    ):
        self.latent_size = latent_size
        self.rng = resolve_stream(type(self).__name__, rng, "latent_sampling")
        self.kl_weight = float(kl_weight)
        self.min_std = float(min_std)
        self.deterministic = False

    def _fresh_keys(self, batch_size: BatchSize) -> jax.Array:
        # Keys are part of the carry's structure even in eval mode, but must not cost a draw there.
        key = peek_key(self.rng) if self.deterministic else self.rng()
        return jax.random.split(key, batch_size)

    def _latent(self, keys: jax.Array, obs: AnyArray) -> _Latent:
        if obs.shape[-1] != 2 * self.latent_size:
            raise ValueError(
                f"{type(self).__name__}: needs a mean and a spread for each of {self.latent_size} "
                f"latents, so {2 * self.latent_size} inputs, got shape {obs.shape}"
            )
        mean, spread = jp.split(jp.asarray(obs), 2, axis=-1)
        std = jax.nn.softplus(spread) + self.min_std
        kl_divergence = jp.sum(
            0.5 * (jp.square(mean) + jp.square(std) - 2.0 * jp.log(std) - 1.0), axis=-1
        )
        if self.deterministic:
            return _Latent(mean, std, mean, kl_divergence, keys)

        # A key is either split or drawn from, never both: one half goes on, the other is used up.
        next_keys, noise_keys = jp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        noise = jax.vmap(lambda key: jax.random.normal(key, (self.latent_size,), mean.dtype))(
            noise_keys
        )
        return _Latent(mean, std, mean + std * noise, kl_divergence, next_keys)


class VariationalBottleneck(_GaussianBottleneck):
    """Samples a latent from a normal distribution, regularized towards the standard normal.

    A deep variational information bottleneck (Alemi et al., 2017). The carry is one typed random
    key per environment, ``(batch,)``: the latent depends on carry and input alone, so replaying a
    step, or a slice of its batch, gives the same latents. Resets keep the keys.

    Attributes:
        deterministic: Whether the latent is the mean and nothing is drawn; toggled by ``eval()``
            and ``train()``.
    """

    def __init__(
        self,
        latent_size: int,
        rng: nnx.Rngs | nnx.RngStream,
        kl_weight: SupportsFloat = 1.0,
        min_std: SupportsFloat = 1e-6,
    ):
        """Creates the bottleneck.

        Args:
            latent_size: Number of latents; the input holds a mean and a spread for each.
            rng: Source of the keys: a stream, or streams of which ``latent_sampling`` is used if
                there is one, else ``default``.
            kl_weight: Factor of the divergence in the loss.
            min_std: Smallest standard deviation.

        Raises:
            ValueError: ``rng`` has neither stream.
        """
        super().__init__(latent_size, rng, kl_weight, min_std)

    def __call__(
        self,
        module_state: ModuleState,
        obs: Float[AnyArray, "batch parameters"],
        rollout_extras: Any = None,
    ) -> StatefulModuleOutput:
        """Returns the latents ``(batch, latent_size)``.

        Metrics are ``mu`` and ``sigma`` ``(batch, latent_size)`` and ``kl_divergence``
        ``(batch,)``.

        Raises:
            ValueError: the input is not ``(batch, 2 * latent_size)``.
        """
        latent = self._latent(module_state, obs)
        return StatefulModuleOutput(
            next_state=latent.next_keys,
            output=latent.sample,
            regularization_loss=self.kl_weight * latent.kl_divergence,
            metrics={
                "mu": latent.mean,
                "sigma": latent.std,
                "kl_divergence": latent.kl_divergence,
            },
        )

    def initialize_state(self, batch_size: BatchSize) -> jax.Array:
        """Returns one key per environment; in eval mode the module's stream is left as it was."""
        return self._fresh_keys(batch_size)


class AR1VariationalBottleneck(_GaussianBottleneck):
    """A variational bottleneck whose latent is also drawn towards that of the step before.

    The carry is ``{"keys": (batch,) typed keys, "last_z": (batch, latent_size)}``. A row of
    ``last_z`` that is all NaN marks an environment without a step before; a latent that is NaN in
    some entries only is an error of the network and stays visible.

    Attributes:
        deterministic: Whether the latent is the mean and nothing is drawn; toggled by ``eval()``
            and ``train()``.
    """

    def __init__(
        self,
        latent_size: int,
        rng: nnx.Rngs | nnx.RngStream,
        kl_weight: SupportsFloat = 1.0,
        min_std: SupportsFloat = 1e-6,
        ar1_weight: SupportsFloat = 1.0,
        backprop_through_time: bool = True,
    ):
        """Creates the bottleneck; arguments as for ``VariationalBottleneck``, and these.

        Args:
            latent_size: Number of latents; the input holds a mean and a spread for each.
            rng: Source of the keys.
            kl_weight: Factor of the divergence in the loss.
            min_std: Smallest standard deviation.
            ar1_weight: Factor of the mean squared change of the latents in the loss.
            backprop_through_time: Whether that term's gradient reaches the step before.

        Raises:
            ValueError: ``rng`` has no stream to draw from.
        """
        super().__init__(latent_size, rng, kl_weight, min_std)
        self.ar1_weight = float(ar1_weight)
        self.backprop_through_time = backprop_through_time

    def __call__(
        self,
        module_state: ModuleState,
        obs: Float[AnyArray, "batch parameters"],
        rollout_extras: Any = None,
    ) -> StatefulModuleOutput:
        """Returns the latents ``(batch, latent_size)``.

        Metrics are those of ``VariationalBottleneck`` and ``l2_diff`` ``(batch,)``, the mean
        squared change since the step before, exactly zero in the first step of an episode.

        Raises:
            ValueError: the input is not ``(batch, 2 * latent_size)``.
        """
        latent = self._latent(module_state["keys"], obs)
        last = module_state["last_z"]
        if not self.backprop_through_time:
            last = jax.lax.stop_gradient(last)
        # Choosing the reference before subtracting keeps NaN out of the gradient as well.
        is_first = jp.all(jp.isnan(last), axis=-1, keepdims=True)
        reference = jp.where(is_first, latent.sample, last)
        l2_diff = jp.mean(jp.square(latent.sample - reference), axis=-1)
        return StatefulModuleOutput(
            next_state={"keys": latent.next_keys, "last_z": latent.sample},
            output=latent.sample,
            regularization_loss=self.kl_weight * latent.kl_divergence + self.ar1_weight * l2_diff,
            metrics={
                "mu": latent.mean,
                "sigma": latent.std,
                "kl_divergence": latent.kl_divergence,
                "l2_diff": l2_diff,
            },
        )

    def initialize_state(self, batch_size: BatchSize) -> dict[str, jax.Array]:
        """Returns fresh keys and the mark of an episode's start."""
        return {
            "keys": self._fresh_keys(batch_size),
            "last_z": jp.full((batch_size, self.latent_size), jp.nan, jp.float32),
        }

    def reset_state(self, prev_state: ModuleState) -> dict[str, jax.Array]:
        """Marks the start of an episode; the keys go on."""
        return {
            "keys": prev_state["keys"],
            "last_z": jp.full_like(prev_state["last_z"], jp.nan),
        }
