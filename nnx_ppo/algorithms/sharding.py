"""Training on several devices: environments are spread over them, and the network is on each.

An iteration is compiled once for all devices, and the compiler inserts the communication (Y. Xu et
al., "GSPMD: general and scalable parallelization for ML computation graphs", 2021). What an
iteration computes stays the same; only the order in which sums are taken changes.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nnx_ppo.algorithms.trees import has_leading_axis

# Fields of training states whose leaves lead with the environment axis.
PER_ENVIRONMENT = ("network_states", "student_states", "teacher_states", "env_states")

_active_mesh: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


def shard_training_state(state: Any, mesh: Mesh) -> Any:
    """Places a training state on the devices of a mesh.

    Args:
        state: A ``TrainingState`` or ``DistillationState``, the same in each process.
        mesh: The devices; environments are spread over all axes of the mesh.

    Returns:
        The state with environments and carries divided along their first axis, and everything
        else on each device: weights, optimizer, and fields that all environments share. Network
        and optimizer are the given objects.

    Raises:
        ValueError: the environments cannot be divided evenly among the devices.
    """
    n_envs = state.env_states.done.shape[0]
    if n_envs % mesh.size:
        raise ValueError(
            f"n_envs={n_envs} environments cannot be divided evenly among the {mesh.size} devices "
            f"of the mesh; choose n_envs as a multiple of {mesh.size}"
        )
    fields = {}
    for name, value in vars(state).items():
        if isinstance(value, nnx.Module):
            replicate_module(value, mesh)
        else:
            spread = name in PER_ENVIRONMENT
            fields[name] = jax.tree.map(
                lambda leaf, spread=spread: _put(leaf, _sharding(leaf, mesh, n_envs, spread)), value
            )
    return state.replace(**fields)


def replicate_module(module: nnx.Module, mesh: Mesh) -> None:
    """Places the Variables of a module on each device of a mesh."""
    everywhere = NamedSharding(_automatic(mesh), PartitionSpec())
    nnx.update(module, jax.tree.map(lambda leaf: _put(leaf, everywhere), nnx.state(module)))


def local_training_state(state: Any) -> Any:
    """Fetches a whole training state that is spread over devices, also those of other processes.

    Every process has to call it, since each sends the others its part.

    Returns:
        A copy of the state whose arrays are on one device of this process.
    """
    fields = {}
    for name, value in vars(state).items():
        if isinstance(value, nnx.Module):
            fields[name] = local_module(value)
        else:
            fields[name] = jax.tree.map(_fetch, value)
    return state.replace(**fields)


def local_module(module: Any) -> Any:
    """Copies a module that is on each device of a mesh to one device of this process."""
    copy = nnx.clone(module)
    nnx.update(copy, jax.tree.map(_fetch, nnx.state(copy)))
    return copy


@functools.lru_cache
def compile_on_mesh(
    step: Callable[..., tuple[Any, Any]], mesh: Mesh, static_argnums: tuple[int, ...]
) -> Callable[..., tuple[Any, Any]]:
    """Compiles an iteration for a state that ``shard_training_state`` has placed.

    Args:
        step: Returns a training state and metrics.
        mesh: The devices.
        static_argnums: Arguments of ``step`` that are not traced.

    Returns:
        The compiled iteration. It returns the state divided as it was, and metrics on each device.
    """
    everywhere = NamedSharding(_automatic(mesh), PartitionSpec())

    def run(*arguments: Any) -> tuple[Any, Any]:
        with _on(mesh):
            state, metrics = step(*arguments)
        n_envs = state.env_states.done.shape[0]
        fields = {}
        for name, value in vars(state).items():
            if isinstance(value, nnx.Module):
                nnx.update(value, jax.lax.with_sharding_constraint(nnx.state(value), everywhere))
            else:
                spread = name in PER_ENVIRONMENT
                fields[name] = jax.tree.map(
                    lambda leaf, spread=spread: jax.lax.with_sharding_constraint(
                        leaf, _sharding(leaf, mesh, n_envs, spread)
                    ),
                    value,
                )
        metrics = jax.lax.with_sharding_constraint(metrics, everywhere)
        return state.replace(**fields), metrics

    return nnx.jit(run, static_argnums=static_argnums)


def shard_environments(tree: Any, n_envs: int, axis: int = 0) -> Any:
    """Asks the compiler to keep arrays divided along their environment axis.

    Does nothing outside of ``compile_on_mesh``, to leaves without that axis, and where the
    environments cannot be divided evenly, as in a small minibatch.

    Args:
        tree: Arrays.
        n_envs: Length of their environment axis.
        axis: Which axis that is.
    """
    mesh = _active_mesh.get()
    if mesh is None or n_envs % mesh.size:
        return tree
    spec = PartitionSpec(*([None] * axis), mesh.axis_names)
    sharding = NamedSharding(_automatic(mesh), spec)

    def constrain(leaf: Any) -> Any:
        if leaf.ndim <= axis or leaf.shape[axis] != n_envs:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, sharding)

    return jax.tree.map(constrain, tree)


def on_each_device(function: Callable[..., Any], n_envs: int) -> Callable[..., Any]:
    """Makes a function of environments run on each device for that device's environments alone.

    Without a mesh, and where environments cannot be divided evenly, it is the function itself.

    Args:
        function: Takes and returns trees whose leaves all lead with the environment axis, and
            treats each environment by itself.
        n_envs: Length of that axis.
    """
    mesh = _active_mesh.get()
    if mesh is None or n_envs % mesh.size:
        return function
    spec = PartitionSpec(mesh.axis_names)
    return jax.shard_map(
        function, mesh=_automatic(mesh), in_specs=spec, out_specs=spec, check_vma=False
    )


@contextlib.contextmanager
def _on(mesh: Mesh) -> Iterator[None]:
    token = _active_mesh.set(mesh)
    try:
        yield
    finally:
        _active_mesh.reset(token)


def _automatic(mesh: Mesh) -> Mesh:
    """The mesh with axes over which the compiler divides arrays by itself."""
    return Mesh(mesh.devices, mesh.axis_names)


def _sharding(leaf: Any, mesh: Mesh, n_envs: int, spread: bool) -> NamedSharding:
    divided = spread and has_leading_axis(leaf, n_envs)
    spec = PartitionSpec(mesh.axis_names) if divided else PartitionSpec()
    return NamedSharding(_automatic(mesh), spec)


def _put(leaf: Any, sharding: NamedSharding) -> Any:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)  # of an earlier run with these processes
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    # From NumPy, since a process cannot copy its own device's array to another process's device.
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def _fetch(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _fetch(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf)
        )
    if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        assert isinstance(leaf.sharding, NamedSharding)
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        leaf = jax.jit(lambda x: x, out_shardings=everywhere)(leaf)
    return jax.numpy.asarray(np.asarray(leaf))
