"""Operations on the trees of carries and environment states."""

from typing import Any

import jax
import jax.numpy as jp
from jax.typing import ArrayLike
from jaxtyping import Shaped

from nnx_ppo.networks.types import AnyArray


def tree_where(cond: Shaped[AnyArray, " batch"], on_true: Any, on_false: Any) -> Any:
    """Chooses between two trees, separately for each environment.

    Args:
        cond: Which environments take ``on_true``, bool ``(batch,)``.
        on_true: A tree whose leaves lead with the batch axis.
        on_false: A tree of the same structure.

    Returns:
        The chosen tree. A leaf without the batch axis (a scalar, or one whose first axis has
        another length) is shared between environments, as some simulators have it, and is taken
        from ``on_true``.

    Raises:
        ValueError: the two trees differ in structure.
    """
    batch_size = cond.shape[0]

    def choose(if_true: ArrayLike, if_false: ArrayLike) -> ArrayLike:
        if not has_leading_axis(if_true, batch_size):
            return if_true
        mask = jp.reshape(cond, (batch_size,) + (1,) * (jp.ndim(if_true) - 1))
        return jp.where(mask, if_true, if_false)

    return jax.tree.map(choose, on_true, on_false)


def has_leading_axis(leaf: Any, size: int) -> bool:
    """Whether an array's first axis has this length (a scalar has no first axis)."""
    shape = jp.shape(leaf)
    return len(shape) > 0 and shape[0] == size


def promote_tree(tree: Any, reference: Any) -> Any:
    """Casts each leaf to the type in which it and its counterpart in ``reference`` both fit.

    Resetting and stepping an environment often disagree on a type (``done`` as a bool or a
    float); loops need one type throughout.
    """

    def promote(leaf: Any, other: Any) -> Any:
        if jp.issubdtype(leaf.dtype, jax.dtypes.extended) or leaf.dtype == other.dtype:
            return leaf
        # Allowed here whatever the user's setting: this is where the types are reconciled.
        with jax.numpy_dtype_promotion("standard"):
            dtype = jp.promote_types(leaf.dtype, other.dtype)
        return leaf.astype(dtype)

    return jax.tree.map(promote, tree, reference)


def strong_types(tree: Any) -> Any:
    """Gives arrays made from Python numbers a type of their own.

    Their type is weak and becomes strong in the first step, after which a compiled step would no
    longer fit and be compiled again.
    """

    def strengthen(leaf: Any) -> Any:
        leaf = jp.asarray(leaf)
        if jp.issubdtype(leaf.dtype, jax.dtypes.extended):
            return leaf
        return jax.lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(strengthen, tree)


def tree_sum(tree: Any) -> Any:
    """Adds the leaves of a tree elementwise; an array is its own sum."""
    leaves = jax.tree.leaves(tree)
    total = leaves[0]
    for leaf in leaves[1:]:
        total = total + leaf
    return total
