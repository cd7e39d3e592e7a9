"""What a traced step must not hold: chance, calls back into Python, state outside the carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core as jcore

from export.errors import HiddenStateError, HostCallbackError, NetworkError, RandomnessError
from export.module_scopes import module_path_of, source_line_of
from export.network_copy import NetworkCopy
from export.passes.rewrite import sub_jaxprs
from export.structure import leaf_names, paths_of
from serving.manifest_checks import DTYPES

_RANDOM_PRIMITIVES = frozenset(
    [
        "random_bits",
        "random_wrap",
        "random_unwrap",
        "random_split",
        "random_fold_in",
        "random_seed",
        "random_clone",
        "random_gamma",
        "threefry2x32",
        "rng_bit_generator",
        "rng_uniform",
    ]
)

_CALLBACK_PRIMITIVES = frozenset(
    ["pure_callback", "io_callback", "debug_callback", "debug_print", "python_callback"]
)


def refuse_randomness(step: jcore.ClosedJaxpr) -> None:
    """Raise if a random draw is left in a step without dead code.

    Raises:
        RandomnessError: One is; names the module and the line.
    """
    for primitive, module_path, source in _uses_of(step.jaxpr, _RANDOM_PRIMITIVES):
        raise RandomnessError(
            f"module '{module_path}' draws random numbers in eval() mode (primitive '{primitive}' "
            f"at {source}) and the action depends on them. Make the module return its mean when "
            "`self.deterministic` is True, which eval() sets"
        )


def refuse_callbacks(step: jcore.ClosedJaxpr) -> None:
    """Raise if a call back into Python is left in a step without dead code.

    Raises:
        HostCallbackError: One is; names the module and the line.
    """
    for primitive, module_path, source in _uses_of(step.jaxpr, _CALLBACK_PRIMITIVES):
        raise HostCallbackError(
            f"module '{module_path}' calls back into Python (primitive '{primitive}' at {source}); "
            "no exported format can, since there is no Python where it runs. Write the function "
            "with jax.numpy, and remove prints and logging from what eval() mode runs"
        )


def _uses_of(jaxpr: Any, primitives: frozenset[str], outer: str = "network") -> Any:
    """Yield primitive, module path and source line of each use, in loops and branches too."""
    for equation in jaxpr.eqns:
        own = module_path_of(equation)
        # The body of a loop may not know what module the loop is in.
        path = outer if own == "network" else own
        if equation.primitive.name in primitives:
            yield equation.primitive.name, path, source_line_of(equation)
        for body in sub_jaxprs(equation):
            yield from _uses_of(getattr(body, "jaxpr", body), primitives, path)


def refuse_hidden_state(used: Sequence[bool], changed: Sequence[bool], copy: NetworkCopy) -> None:
    """Raise if the action depends on a Variable that the step rewrites.

    Args:
        used: One flag per leaf of the state: the action depends on it.
        changed: One flag per leaf of the state: the step rewrites it.
        copy: Knows the leaves' paths.

    Raises:
        HiddenStateError: A leaf is both; names it.
    """
    paths = [
        ".".join(_variable_path(path))
        for path, _ in jax.tree_util.tree_flatten_with_path(copy.state)[0]
    ]
    hidden = [p for p, u, c in zip(paths, used, changed, strict=True) if u and c]
    if hidden:
        raise HiddenStateError(
            f"the step rewrites the Variable '{hidden[0]}' and the action depends on it: this "
            "state would be lost in an exported step. Return it in the carry (initialize_state, "
            "next_state) instead of writing it to the module"
        )


def _variable_path(path: Any) -> list[str]:
    keys = [
        getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", ""))) for entry in path
    ]
    return [str(key) for key in keys if str(key) != "value"]


def refuse_dtypes(role: str, tree: Any, kept: list[bool] | None) -> None:
    """Raise if a kept leaf has a dtype that no tensor of a bundle can have.

    Raises:
        NetworkError: One has; names it.
    """
    names, leaves = leaf_names(role, paths_of(tree, role)), jax.tree.leaves(tree)
    for name, leaf, keep in zip(names, leaves, kept or [True] * len(leaves), strict=True):
        if keep and str(leaf.dtype) not in DTYPES:
            raise NetworkError(
                f"{name} has dtype {leaf.dtype}, which no tensor of a bundle can have; cast it to "
                "float32 in the network, and back where it comes in"
            )
