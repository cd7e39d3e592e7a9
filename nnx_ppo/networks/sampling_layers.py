"""Modules that turn distribution parameters into actions."""

import abc
import math
from typing import Any, SupportsFloat

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Float

from nnx_ppo.networks.randomness import resolve_stream
from nnx_ppo.networks.types import AnyArray, ModuleState, StatefulModule, StatefulModuleOutput

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class ActionSampler(StatefulModule, abc.ABC):
    """Base of modules whose output is ``{"action": ..., "log_likelihood": ...}``.

    Attributes:
        deterministic: Whether the action is the distribution's mode instead of a sample. Toggled
            by ``eval()`` and ``train()`` on this module or any module that contains it.
    """

    deterministic: bool = False

    def __init__(self) -> None:
        # flax toggles only attributes found on the instance or its class.
        self.deterministic = False


class NormalTanhSampler(ActionSampler):
    """A normal distribution squashed into (-1, 1) by tanh, with an entropy bonus.

    The squashed density is that of soft actor-critic (Haarnoja et al., 2018, appendix C). While
    sampling, one draw is made for the action and one to estimate the entropy, each only where it
    is needed. In eval mode nothing is drawn; the entropy is then taken at the mean.
    """

    def __init__(
        self,
        rng: nnx.Rngs | nnx.RngStream,
        entropy_weight: SupportsFloat,
        min_std: SupportsFloat = 1e-3,
        std_scale: SupportsFloat = 1.0,
    ):
        """Creates the sampler.

        Args:
            rng: Source of noise: a stream, or streams of which ``action_sampling`` is used if
                there is one, else ``default``.
            entropy_weight: Factor of the entropy bonus in the loss.
            min_std: Smallest standard deviation, before scaling.
            std_scale: Factor of the standard deviation.

        Raises:
            ValueError: ``rng`` has neither stream.
        """
        super().__init__()
        self.rng = resolve_stream(type(self).__name__, rng, "action_sampling")
        self.entropy_weight = float(entropy_weight)
        self.min_std = float(min_std)
        self.std_scale = float(std_scale)

    def __call__(
        self,
        module_state: ModuleState,
        obs: Float[AnyArray, "*batch parameters"],
        rollout_extras: Any = None,
    ) -> StatefulModuleOutput:
        """Samples an action, or scores the one in ``rollout_extras``.

        Args:
            module_state: Passed through.
            obs: Means and unconstrained spreads, ``(batch, 2 * action_size)``.
            rollout_extras: None, or the action before tanh ``(batch, action_size)``.

        Returns:
            Output with action ``(batch, action_size)`` and log-likelihood ``(batch,)``; extras are
            the action before tanh, metrics ``mu`` and ``sigma``.

        Raises:
            ValueError: the input's last axis has odd length.
        """
        if obs.shape[-1] % 2:
            raise ValueError(
                f"NormalTanhSampler: needs a mean and a spread per action, so an even number of "
                f"inputs, got shape {obs.shape}; make the layer before it twice the action size"
            )
        mean, spread = jp.split(jp.asarray(obs), 2, axis=-1)
        std = (jax.nn.softplus(spread) + self.min_std) * self.std_scale

        if rollout_extras is None:
            raw_action = self._raw_action(mean, std)
        else:
            raw_action = jp.asarray(rollout_extras)
        log_density = -0.5 * jp.square((raw_action - mean) / std) - HALF_LOG_TWO_PI - jp.log(std)
        log_likelihood = jp.sum(log_density - _log_tanh_slope(raw_action), axis=-1)

        return StatefulModuleOutput(
            next_state=module_state,
            output={"action": jp.tanh(raw_action), "log_likelihood": log_likelihood},
            regularization_loss=-self.entropy_weight * self._entropy(mean, std),
            metrics={"mu": mean, "sigma": std},
            rollout_extras=raw_action,
        )

    def _raw_action(self, mean: jax.Array, std: jax.Array) -> jax.Array:
        if self.deterministic:
            return jax.lax.stop_gradient(mean)
        noise = jax.random.normal(self.rng(), mean.shape, mean.dtype)
        return jax.lax.stop_gradient(mean + std * noise)

    def _entropy(self, mean: jax.Array, std: jax.Array) -> jax.Array:
        """Estimates the squashed distribution's entropy ``(batch,)`` from one sample."""
        sample = mean
        if self.entropy_weight != 0.0 and not self.deterministic:
            sample = mean + std * jax.random.normal(self.rng(), mean.shape, mean.dtype)
        normal_entropy = 0.5 + HALF_LOG_TWO_PI + jp.log(std)
        return jp.sum(normal_entropy + _log_tanh_slope(sample), axis=-1)


def _log_tanh_slope(x: jax.Array) -> jax.Array:
    """Returns ``log(1 - tanh(x)^2)`` in a form that stays finite for large ``|x|``."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
