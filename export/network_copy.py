"""Private copies of a network, in evaluation mode, ready to be traced or run.

The caller's network is read once, into a graph definition and arrays, and never touched again:
whatever happens afterwards happens to copies.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from export.delay_layout import use_time_order
from export.errors import NetworkError, RandomnessError
from export.extra_outputs import recording
from export.module_scopes import note_module_paths
from export.own_containers import own_containers
from export.prng_keys import is_key, without_key_type
from export.structure import leaf_names, paths_of
from nnx_ppo.networks.types import PPONetworkOutput


@dataclasses.dataclass(frozen=True)
class NetworkCopy:
    """A network split into what stays fixed and its arrays."""

    graphdef: Any
    """Structure and static attributes."""
    state: Any
    """All Variables: weights, statistics, random streams."""
    _fresh: dict[int, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Batch size → carry, made once."""

    def merge(self, state: Any = None) -> Any:
        """Return a new module, with `state` (default: the recorded arrays), safe inside a trace."""
        network = nnx.merge(self.graphdef, self.state if state is None else state, copy=True)
        own_containers(network)
        return network

    def initialize_state(self, batch_size: int) -> Any:
        """Return the carry of `batch_size` fresh environments.

        Raises:
            NetworkError: The network's own `initialize_state` fails.
        """

        def initialize() -> Any:
            # As arrays of JAX, which also says what becomes of NumPy's float64.
            return jax.tree.map(jnp.asarray, self.merge().initialize_state(batch_size))

        if batch_size not in self._fresh:
            try:
                # Compiled once, and not operation by operation for each leaf's shape.
                self._fresh[batch_size] = jax.jit(initialize)()
            except Exception:  # It may look at values, or whatever it does fails.
                try:
                    self._fresh[batch_size] = initialize()
                except Exception as error:
                    raise NetworkError(
                        f"initialize_state({batch_size}) failed with {_named(error)}"
                    ) from error
        # Containers of its own for everyone who asks; the arrays cannot change.
        return jax.tree.map(lambda leaf: leaf, self._fresh[batch_size])

    @functools.cached_property
    def step(self) -> Any:
        """A function from carry and observation to action and next carry, under `jax.jit`.

        One for all who need it, so that it is traced once for each batch size.
        """

        def step(carry: Any, observation: Any) -> tuple[Any, Any]:
            output = self.merge()(carry, observation)
            return action_of_output(output), output.next_state

        return jax.jit(step)

    @functools.cached_property
    def _reset(self) -> Any:
        # Under jit, where a rollout calls it too.
        return jax.jit(lambda carry: self.merge().reset_state(carry))

    def reset_state(self, carry: Any) -> Any:
        """Return what the network makes of `carry` at the end of an episode.

        Raises:
            NetworkError: The network's own `reset_state` fails or changes the carry's structure.
        """
        try:
            reset = self._reset(carry)
        except Exception as error:
            raise NetworkError(f"reset_state failed with {_named(error)}") from error
        before, after = jax.tree.structure(carry), jax.tree.structure(reset)
        if before != after:
            raise NetworkError(
                f"reset_state returns a carry of another structure than it is given: {after} "
                f"instead of {before}"
            )
        return reset


def action_of_output(output: Any) -> Any:
    """Return the action's tree from what a network returned for one step."""
    result = output.output
    if isinstance(result, PPONetworkOutput):
        return result.actions
    return jax.tree.map(_action_of, result, is_leaf=_is_sampler_output)


def _is_sampler_output(node: Any) -> bool:
    return isinstance(node, dict) and {"action", "log_likelihood"} <= set(node)


def _action_of(node: Any) -> Any:
    return node["action"] if _is_sampler_output(node) else node


def reference_copy(network: Any, *, record: bool = False) -> NetworkCopy:
    """Return the network as the user trained it, switched with `eval()`.

    Args:
        network: The caller's.
        record: Have it say in its metrics what each module computes.
    """
    return _copy(network, exported=False, record=record)


def export_copy(network: Any, *, record: bool = False) -> NetworkCopy:
    """Return the network in `eval()` mode, with delays in time order.

    Its modules say who they are, and what they compute if `record` is set.
    """
    return _copy(network, exported=True, record=record)


def _copy(network: Any, *, exported: bool, record: bool) -> NetworkCopy:
    if not isinstance(network, nnx.Module) or not callable(network):
        raise NetworkError(
            f"expected a network (a callable flax.nnx.Module, such as a StatefulModule), got "
            f"{type(network).__module__}.{type(network).__qualname__}"
        )
    for method in ("initialize_state(batch_size)", "reset_state(carry)"):
        if not hasattr(network, method.partition("(")[0]):
            raise NetworkError(
                f"{type(network).__qualname__} has no {method}; derive it from "
                "nnx_ppo.networks.types.StatefulModule, which has defaults for both"
            )
    graphdef, state = nnx.split(network)
    copy: Any = nnx.merge(graphdef, state, copy=True)
    own_containers(copy)
    copy.eval()
    if exported:
        use_time_order(copy)
        note_module_paths(copy)
    if record:
        copy = recording(copy)
    return NetworkCopy(*nnx.split(copy))


def fresh_rows(copy: NetworkCopy, kept: list[bool] | None = None) -> list[Any]:
    """Return the carry leaves of one fresh environment, without a batch axis.

    Args:
        copy: The network.
        kept: Flags of the leaves that matter; the rest may be random.

    Raises:
        NetworkError: A leaf does not lead with the batch axis.
        RandomnessError: A kept leaf is drawn at random for every environment.
    """
    two, three = copy.initialize_state(2), copy.initialize_state(3)
    if jax.tree.structure(two) != jax.tree.structure(three):
        raise NetworkError(
            "initialize_state gives 2 and 3 environments carries of different structure, "
            f"{jax.tree.structure(two)} and {jax.tree.structure(three)}; every leaf must lead with "
            "the batch axis"
        )
    names = leaf_names("carry", paths_of(two, "carry"))
    rows: list[Any] = []
    pairs = zip(jax.tree.leaves(two), jax.tree.leaves(three), strict=True)
    for index, (name, (leaf, other)) in enumerate(zip(names, pairs, strict=True)):
        of_two, of_three = leaf.shape, other.shape
        if of_two[:1] != (2,) or of_three[:1] != (3,) or of_two[1:] != of_three[1:]:
            raise NetworkError(
                f"{name} has shape {of_two} for 2 environments and {of_three} for 3; every "
                "leaf that "
                "initialize_state returns must lead with the batch axis"
            )
        rows.append(_first_row(leaf))
        if kept is not None and kept[index] and not _rows_equal(leaf):
            raise RandomnessError(
                f"{name} differs between fresh environments and influences the action: a robot's "
                "initial carry would be a matter of chance. Initialize it with constants"
            )
    return rows


def _first_row(leaf: Any) -> Any:
    # On the host, where an index is not compiled for each shape.
    return leaf[0] if is_key(leaf) else jnp.asarray(np.asarray(leaf)[0])


def _rows_equal(leaf: Any) -> bool:
    host = np.asarray(without_key_type(leaf))
    return bool(np.array_equal(host[0], host[1], equal_nan=host.dtype.kind in "fc"))


def reset_behaviour(copy: NetworkCopy, kept: list[bool]) -> list[str]:
    """Tell for each carry leaf what `reset_state` does to it.

    Returns:
        `initial` where a reset row equals a fresh one, `keep` where a reset changes nothing; for
        leaves that are not kept, `initial`.

    Raises:
        NetworkError: A kept leaf is reset to something else.
    """
    fresh = copy.initialize_state(2)
    names = leaf_names("carry", paths_of(fresh, "carry"))
    outcomes = []
    for seed in (1, 2):
        probe = _scrambled(fresh, seed)
        reset = copy.reset_state(probe)
        outcomes.append((jax.tree.leaves(probe), jax.tree.leaves(reset)))
    behaviour: list[str] = []
    for index, (name, initial) in enumerate(zip(names, jax.tree.leaves(fresh), strict=True)):
        if not kept[index] or all(_equal(reset[index], initial) for _, reset in outcomes):
            behaviour.append("initial")
        elif all(_equal(reset[index], probe[index]) for probe, reset in outcomes):
            behaviour.append("keep")
        else:
            raise NetworkError(
                f"reset_state sets {name} neither to its initial value nor leaves it alone; a "
                "session "
                "could not reset it. Make reset_state agree with initialize_state"
            )
    return behaviour


def _scrambled(carry: Any, seed: int) -> Any:
    generator = np.random.default_rng(seed)

    def scramble(leaf: Any) -> Any:
        if is_key(leaf):
            return leaf
        if leaf.dtype == bool:
            return ~leaf
        noise = generator.standard_normal(leaf.shape) * 3.0 + 5.0
        return jnp.asarray(noise).astype(leaf.dtype)

    return jax.tree.map(scramble, carry)


def _equal(one: Any, other: Any) -> bool:
    one, other = (np.asarray(without_key_type(leaf)) for leaf in (one, other))
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def _named(error: Exception) -> str:
    """Return the type and the first line of an error; JAX explains at length."""
    return f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"
