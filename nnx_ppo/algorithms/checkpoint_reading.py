"""Reading checkpoints: a whole training state, its network alone, or what it says of itself."""

import os
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from nnx_ppo.algorithms.checkpoint_format.json_values import from_json_value
from nnx_ppo.algorithms.checkpoint_format.leaves import abstract_leaf, restore_leaf
from nnx_ppo.algorithms.checkpoint_format.metadata import (
    FILE_NAME,
    Metadata,
    read_file,
    read_metadata,
)
from nnx_ppo.algorithms.checkpoint_format.state_trees import (
    CARRY_FILE,
    KINDS,
    NETWORKS_FILE,
    OPTIMIZER_FILE,
    check_leaves,
    leaves_by_name,
    restore_tree,
    tree_fields,
)
from nnx_ppo.algorithms.checkpoint_format.tensor_file import decode_tensors
from nnx_ppo.algorithms.checkpoint_format.tree_record import (
    StructureError,
    build_structure,
    opaque_parts,
)
from nnx_ppo.algorithms.errors import CheckpointError, FactoryRecordError
from nnx_ppo.algorithms.factory_record import FactoryRecord
from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.networks.types import StatefulModule


class CheckpointRecord:
    """What a checkpoint says of itself, without its tensors."""

    def __init__(self, path: Path, metadata: Metadata):
        self.path = path
        self._metadata = metadata

    @property
    def step(self) -> int:
        """Environment steps taken."""
        return self._metadata.step

    @property
    def n_envs(self) -> int:
        """Environments in the training state."""
        return self._metadata.n_envs

    @property
    def versions(self) -> dict[str, str]:
        """Packages that wrote it."""
        return dict(self._metadata.versions)

    @property
    def network_factory(self) -> FactoryRecord | None:
        """How to build the network, if that was recorded."""
        return self._factory(self._metadata.network_factory)

    @property
    def environment_factory(self) -> FactoryRecord | None:
        """How to build the environment, if that was recorded."""
        return self._factory(self._metadata.environment_factory)

    @property
    def observation(self) -> Any:
        """One observation as a tree of ``jax.ShapeDtypeStruct`` without batch axis.

        Raises:
            CheckpointError: it has a structure that could not be recorded.
        """
        record = self._metadata.observation
        if record is None or record.structure is None:
            raise CheckpointError(f"{self._file}: the environment states have no observation")
        try:
            return build_structure(record.structure, [abstract_leaf(r) for r in record.leaves])
        except StructureError as error:
            raise CheckpointError(
                f"{self._file}: the observation cannot be built: {error}"
            ) from error

    @property
    def config(self) -> Any:
        """The run's settings.

        Raises:
            CheckpointError: they use a class that is no longer there or has changed.
        """
        try:
            return from_json_value(self._metadata.config)
        except (ImportError, AttributeError, ValueError, KeyError) as error:
            raise CheckpointError(f"{self._file}: config cannot be read: {error}") from error

    def _factory(self, record: Any) -> FactoryRecord | None:
        if record is None:
            return None
        try:
            return FactoryRecord.from_json(record)
        except FactoryRecordError as error:
            raise CheckpointError(f"{self._file}: {error}") from error

    @property
    def _file(self) -> Path:
        return self.path / FILE_NAME


def read_checkpoint_record(path: str | os.PathLike[str]) -> CheckpointRecord:
    """Reads what a checkpoint says of itself.

    Args:
        path: A step directory.

    Raises:
        CheckpointError: it is not a checkpoint, or its metadata is damaged.
    """
    directory = Path(path)
    return CheckpointRecord(directory, read_metadata(directory))


def load_checkpoint(
    path: str | os.PathLike[str],
    networks: StatefulModule,
    optimizer: nnx.Optimizer,
    *,
    env: RLEnv | None = None,
) -> dict[str, Any]:
    """Reads a training state to go on from.

    Args:
        path: A step directory, such as ``latest_checkpoint(directory)``.
        networks: A network of the same architecture; its weights, statistics and random streams
            are replaced.
        optimizer: An optimizer of the same kind, made for ``networks``; its state is replaced.
        env: The environment, needed only where its states use containers that could not be
            recorded (an error says so).

    Returns:
        ``{"training_state", "step", "config"}``. The training state holds ``networks`` and
        ``optimizer`` themselves; pass it to ``train_ppo`` as ``initial_state``.

    Raises:
        CheckpointError: the checkpoint is damaged, or the network, optimizer or environment is
            not like the one saved. Network and optimizer are then as they were.
    """
    record = read_checkpoint_record(path)
    directory, metadata = record.path, record._metadata
    if metadata.kind not in KINDS:
        raise CheckpointError(f"{directory / FILE_NAME}: unknown kind of state {metadata.kind!r}")
    new_network = _module_state("network", "networks", NETWORKS_FILE, networks, record)
    new_optimizer = _module_state("optimizer", "optimizer", OPTIMIZER_FILE, optimizer, record)

    file = directory / CARRY_FILE
    tensors = decode_tensors(read_file(directory, CARRY_FILE, metadata), file)
    fields = {}
    for name in tree_fields(metadata.kind):
        tree_record = metadata.trees.get(name)
        if tree_record is None:
            raise CheckpointError(f"{directory / FILE_NAME} has no record of {name}")
        template = None
        if name == "env_states" and env is not None:
            template = _environment_template(env, metadata.n_envs)
        elif tree_record.structure is not None and any(opaque_parts(tree_record.structure)):
            template = _template_of_opaque(name, networks, metadata.n_envs, file, tree_record)
        fields[name] = restore_tree(name, tree_record, tensors, file, template)
    config = record.config

    # Only now that everything has been read: a failed call leaves the arguments as they were.
    nnx.update(networks, new_network)
    nnx.update(optimizer, new_optimizer)
    cls, network_field = KINDS[metadata.kind]
    state = cls(**{network_field: networks, "optimizer": optimizer}, **fields)
    return {"training_state": state, "step": metadata.step, "config": config}


def load_network(
    path: str | os.PathLike[str], network: StatefulModule | None = None
) -> StatefulModule:
    """Reads the network of a checkpoint, without optimizer and environment.

    Args:
        path: A step directory.
        network: A network of the same architecture, whose weights and statistics are replaced. If
            None, one is built as the checkpoint's factory record says; that runs the function
            which the record names, so do it only with checkpoints you trust.

    Returns:
        The network.

    Raises:
        CheckpointError: the checkpoint is damaged, has no factory record, or does not fit.
    """
    record = read_checkpoint_record(path)
    if network is None:
        factory = record.network_factory
        if factory is None:
            raise CheckpointError(
                f"{record.path / FILE_NAME} does not record how to build the network; pass one of "
                f"the same architecture, or save with make_checkpoint_fn(network_factory=...)"
            )
        try:
            network = factory.build()
        except FactoryRecordError as error:
            raise CheckpointError(f"{record.path / FILE_NAME}: {error}") from error
        if not isinstance(network, StatefulModule):
            raise CheckpointError(
                f"{record.path / FILE_NAME}: {factory.factory} made a {type(network).__name__}, "
                f"expected a StatefulModule"
            )
    nnx.update(network, _module_state("network", "networks", NETWORKS_FILE, network, record))
    return network


def _module_state(
    what: str, name: str, file_name: str, module: Any, record: CheckpointRecord
) -> Any:
    """Reads the Variables of a module, checked against the given one."""
    metadata, file = record._metadata, record.path / file_name
    tensors = decode_tensors(read_file(record.path, file_name, metadata), file)
    tree_record = metadata.trees.get(name)
    if tree_record is None:
        raise CheckpointError(f"{record.path / FILE_NAME} has no record of the {what}")
    template = nnx.state(module)
    recorded = {str(leaf.tensor): leaf for leaf in tree_record.leaves}
    expected = leaves_by_name(template)
    check_leaves(what, recorded, expected, file, same_types=True)
    leaves = [restore_leaf(recorded[name], tensors, file) for name in expected]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _environment_template(env: RLEnv, n_envs: int) -> Any:
    def reset() -> Any:
        return jax.vmap(env.reset)(jax.random.split(jax.random.key(0), n_envs))

    return jax.eval_shape(reset)


def _template_of_opaque(
    name: str, networks: StatefulModule, n_envs: int, file: Path, record: Any
) -> Any:
    """Finds a template for a tree whose structure could not be recorded."""
    if name in ("network_states", "student_states"):
        graphdef, variables = nnx.split(networks)

        def initialize(variables: Any) -> Any:
            return nnx.merge(graphdef, variables, copy=True).initialize_state(n_envs)

        return jax.eval_shape(initialize, variables)
    part = next(opaque_parts(record.structure))
    hint = "pass the environment as env=" if name == "env_states" else "it cannot be loaded"
    raise CheckpointError(
        f"{file}: {name}{part.where} is a {part.class_name}, whose structure could not be "
        f"recorded (a class is recorded if it is a dataclass or named tuple at the top level of a "
        f"module); {hint}"
    )
