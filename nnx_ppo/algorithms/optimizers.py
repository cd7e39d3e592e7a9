"""The optimizers that training offers."""

import functools
from typing import Any

import jax
import optax


@functools.lru_cache(maxsize=64)
def make_gradient_transformation(
    learning_rate: float | int,
    gradient_clipping: float | int | None = None,
    weight_decay: float | int | bool | None = None,
) -> optax.GradientTransformation:
    """Returns Adam, or AdamW, behind an optional limit on the gradient's global norm.

    The same settings return the same object, so that a second training run finds the step that
    the first one compiled.

    Args:
        learning_rate: Step size.
        gradient_clipping: Largest global norm, or None.
        weight_decay: None or False for Adam, True for AdamW with its default decay, or the decay.
    """
    if weight_decay is None or weight_decay is False:
        optimizer = optax.adam(learning_rate)
    elif weight_decay is True:
        optimizer = optax.adamw(learning_rate)
    else:
        optimizer = optax.adamw(learning_rate, weight_decay=weight_decay)
    parts: list[optax.GradientTransformation] = [optimizer]
    if gradient_clipping is not None:
        parts.insert(0, optax.clip_by_global_norm(gradient_clipping))
    return _with_standard_promotion(optax.chain(*parts))


def _with_standard_promotion(optimizer: optax.GradientTransformation) -> Any:
    """Lets optax mix integers and floats where the user's code is held to strict types."""

    def update(*args: Any, **kwargs: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(*args, **kwargs)

    return optax.GradientTransformation(optimizer.init, update)
