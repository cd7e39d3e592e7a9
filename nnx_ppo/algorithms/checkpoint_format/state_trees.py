"""Training states as trees of tensors, and back."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from nnx_ppo.algorithms.checkpoint_format.leaves import (
    LeafRecord,
    describe_leaf,
    record_leaves,
    restore_leaf,
    tensor_name,
    unused_name,
)
from nnx_ppo.algorithms.checkpoint_format.metadata import TreeRecord
from nnx_ppo.algorithms.checkpoint_format.tensor_file import is_key_array
from nnx_ppo.algorithms.checkpoint_format.tree_record import (
    StructureError,
    build_structure,
    record_structure,
)
from nnx_ppo.algorithms.errors import CheckpointError
from nnx_ppo.algorithms.types import DistillationState, TrainingState

NETWORKS_FILE = "networks/state.safetensors"
OPTIMIZER_FILE = "optimizer/state.safetensors"
CARRY_FILE = "carry.safetensors"

# Per kind of training state: its class and the field that holds the network in training. The
# other fields but the optimizer are trees of arrays.
KINDS: dict[str, tuple[type, str]] = {
    "training": (TrainingState, "networks"),
    "distillation": (DistillationState, "student"),
}


@dataclasses.dataclass(frozen=True)
class RecordedState:
    """A training state, ready to be written."""

    kind: str
    n_envs: int
    trees: dict[str, TreeRecord]
    observation: TreeRecord | None
    tensors: dict[str, dict[str, np.ndarray]]
    """Tensors by name, for each file."""


def tree_fields(kind: str) -> list[str]:
    """Returns the fields of a training state that are trees of arrays."""
    cls, network_field = KINDS[kind]
    names = [field.name for field in dataclasses.fields(cls)]
    return [name for name in names if name not in (network_field, "optimizer")]


def record_training_state(state: Any, target: Path) -> RecordedState:
    """Takes a training state apart.

    Args:
        state: A ``TrainingState`` or ``DistillationState``.
        target: The checkpoint's directory, for errors.

    Raises:
        CheckpointError: it is another object, or holds what cannot be written.
    """
    kind = next((name for name, (cls, _) in KINDS.items() if isinstance(state, cls)), None)
    if kind is None:
        raise CheckpointError(
            f"{target}: cannot write a {type(state).__name__}; expected a TrainingState or "
            f"DistillationState"
        )
    tensors: dict[str, dict[str, np.ndarray]] = {}
    trees: dict[str, TreeRecord] = {}

    def record(name: str, tree: Any, file: str, prefix: str, with_structure: bool) -> None:
        leaves = record_leaves(tree, prefix, tensors.setdefault(file, {}), target / file)
        structure = record_structure(tree) if with_structure else None
        trees[name] = TreeRecord(file, structure, leaves)

    network = getattr(state, KINDS[kind][1])
    record("networks", nnx.state(network), NETWORKS_FILE, "", False)
    record("optimizer", nnx.state(state.optimizer), OPTIMIZER_FILE, "", False)
    for name in tree_fields(kind):
        record(name, getattr(state, name), CARRY_FILE, name, True)

    env_leaves = jax.tree.leaves(state.env_states)
    n_envs = next((leaf.shape[0] for leaf in env_leaves if np.ndim(leaf) > 0), 0)
    observation = _record_observation(getattr(state.env_states, "obs", None), target)
    return RecordedState(kind, int(n_envs), trees, observation, tensors)


def restore_tree(
    name: str,
    record: TreeRecord,
    tensors: Mapping[str, np.ndarray],
    file: Path,
    template: Any = None,
) -> Any:
    """Builds a recorded tree.

    Args:
        name: What the tree is called in errors.
        record: Its record.
        tensors: The tensors of its file.
        file: That file, for errors.
        template: A tree of arrays or abstract arrays whose structure is taken, instead of the
            recorded one.

    Raises:
        CheckpointError: the tree does not fit the template, cannot be built, or is damaged.
    """
    leaves = [restore_leaf(leaf, tensors, file) for leaf in record.leaves]
    if template is not None:
        recorded = {leaf.path: leaf for leaf in record.leaves}
        check_leaves(name, recorded, leaves_by_path(template), file)
        return jax.tree.unflatten(jax.tree.structure(template), leaves)
    if record.structure is None:
        raise CheckpointError(f"{file}: the structure of {name} is not recorded")
    try:
        tree = build_structure(record.structure, leaves)
    except StructureError as error:
        hint = "; pass the environment as env=" if name == "env_states" else ""
        raise CheckpointError(f"{file}: {name} cannot be built: {error}{hint}") from error
    if jax.tree.structure(tree).num_leaves != len(leaves):
        raise CheckpointError(f"{file}: the recorded structure of {name} lost some of its leaves")
    return tree


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their path as JAX writes it, in order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a module's state by their tensors' names, in order."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        named[unused_name(tensor_name("", path), named)] = leaf
    return named


def check_leaves(
    what: str,
    recorded: Mapping[str, LeafRecord],
    expected: Mapping[str, Any],
    file: Path,
    *,
    same_types: bool = False,
) -> None:
    """Compares recorded leaves with those of a tree of the same kind.

    Raises:
        CheckpointError: leaves are missing, surplus, or of other shape (or type, if asked for).
    """
    faults = [f"the checkpoint lacks {path}" for path in expected if path not in recorded]
    faults += [f"the checkpoint also has {path}" for path in recorded if path not in expected]
    for path, leaf in expected.items():
        record = recorded.get(path)
        if record is None:
            continue
        shape = list(np.shape(leaf))
        if record.shape != shape:
            faults.append(f"{path} has shape {record.shape} in the checkpoint, here {shape}")
        elif same_types and _type_of(leaf) != (record.key_impl or record.dtype):
            faults.append(
                f"{path} has type {record.key_impl or record.dtype} in the checkpoint, "
                f"here {_type_of(leaf)}"
            )
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if faults[5:] else "")
        raise CheckpointError(f"{file} does not fit the given {what}: {shown}")


def _record_observation(obs: Any, target: Path) -> TreeRecord | None:
    if obs is None:
        return None
    one = jax.tree.map(lambda leaf: leaf[0], obs)
    leaves = [
        describe_leaf(path, leaf, None, target)
        for path, leaf in jax.tree_util.tree_flatten_with_path(one)[0]
    ]
    return TreeRecord(None, record_structure(one), leaves)


def _type_of(leaf: Any) -> str:
    if hasattr(leaf, "dtype") and is_key_array(leaf):
        return str(jax.random.key_impl(leaf))
    return np.asarray(leaf).dtype.name if not hasattr(leaf, "dtype") else np.dtype(leaf.dtype).name
