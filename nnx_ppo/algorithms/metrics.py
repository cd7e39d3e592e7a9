"""Turning what an iteration computed into a flat dict of named scalars."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx

from nnx_ppo.algorithms.types import DistillationTransition, LoggingLevel, Transition
from nnx_ppo.networks.types import StatefulModule


def compute_metrics(
    loss_metrics: Mapping[str, Any],
    rollout_data: Transition | DistillationTransition,
    logging_level: LoggingLevel,
    percentile_levels: Sequence[int | float] | None = None,
) -> dict[str, Any]:
    """Summarizes one iteration.

    Args:
        loss_metrics: What the losses reported, each leaf stacked over the updates.
        rollout_data: The rollout, leaves ``[time, batch, ...]``; of a distillation, the metrics of
            the network are called ``student/...`` in place of ``net/...``.
        logging_level: What to include beside the losses.
        percentile_levels: Percentiles to report, or None for mean and standard deviation.

    Returns:
        Scalars by name. Names of nested quantities are joined by ``/``.
    """
    metrics: dict[str, Any] = {}
    if isinstance(rollout_data, DistillationTransition):
        network_name, output = "student", rollout_data.student_output
    else:
        network_name, output = "net", rollout_data.network_output

    def log(name: str, value: Any) -> None:
        log_metric(metrics, name, value, percentile_levels)

    for name, value in loss_metrics.items():
        log(name, value)
    if LoggingLevel.ENV_METRICS in logging_level:
        log("env", rollout_data.metrics["env"])
    if LoggingLevel.NETWORK_METRICS in logging_level:
        log(network_name, rollout_data.metrics[network_name])
    if LoggingLevel.ROLLOUT_STATS in logging_level:
        log("rollout_batch/reward", rollout_data.rewards)
        log("rollout_batch/action", output.actions)
        metrics["rollout_batch/done_rate"] = _mean(rollout_data.done)
        metrics["rollout_batch/truncation_rate"] = _mean(rollout_data.truncated)
    if LoggingLevel.ROLLOUT_OBS in logging_level:
        log("rollout_batch/obs", rollout_data.obs)
    if isinstance(rollout_data, DistillationTransition):
        # Likelihoods of its own actions and values are not what a student learns from.
        return metrics
    if LoggingLevel.ACTOR_EXTRA in logging_level:
        log("loglikelihood", output.loglikelihoods)
    if LoggingLevel.CRITIC_EXTRA in logging_level:
        log("losses/predicted_value", output.value_estimates)
    return metrics


def log_metric(
    metrics: dict[str, Any],
    name: str,
    value: Any,
    percentile_levels: Sequence[int | float] | None = None,
) -> None:
    """Adds the statistics of a quantity, or of each part of a nested one, to ``metrics``.

    Args:
        metrics: Where to add them.
        name: Name of the quantity; statistics are added as ``name/mean`` and so on.
        value: An array, over all of whose elements statistics are taken, or a dict, list or tuple
            of such, whose keys extend the name. Of a bool array only the mean is added, as
            ``name``.
        percentile_levels: Percentiles, added as ``name/p50`` in place of ``name/mean`` and
            ``name/std``.
    """
    if value is None:
        return
    if isinstance(value, Mapping):
        for key, part in value.items():
            log_metric(metrics, f"{name}/{key}", part, percentile_levels)
        return
    if isinstance(value, list | tuple):
        for index, part in enumerate(value):
            log_metric(metrics, f"{name}/{index}", part, percentile_levels)
        return
    array = jp.asarray(value)
    if array.dtype == bool:
        metrics[name] = _mean(array)
        return
    if not jp.issubdtype(array.dtype, jp.floating):
        array = array.astype(jp.float32)
    if percentile_levels:
        for level in percentile_levels:
            metrics[f"{name}/p{int(level)}"] = jp.percentile(array, float(level))
        return
    metrics[f"{name}/mean"] = jp.mean(array)
    metrics[f"{name}/std"] = jp.std(array)


def log_weight_stats(
    metrics: dict[str, Any],
    networks: StatefulModule,
    percentile_levels: Sequence[int | float] | None = None,
) -> None:
    """Adds statistics over all ``nnx.Param`` values together, under ``weights``.

    Warns, and adds nothing, if the network has none.
    """
    params = jax.tree.leaves(nnx.state(networks, nnx.Param))
    if not params:
        warnings.warn("the network has no nnx.Param, so there are no weights to log", stacklevel=2)
        return
    weights = jp.concatenate([jp.ravel(param).astype(jp.float32) for param in params])
    log_metric(metrics, "weights", weights, percentile_levels)


def _mean(flags: Any) -> jax.Array:
    return jp.mean(jp.asarray(flags).astype(jp.float32))
