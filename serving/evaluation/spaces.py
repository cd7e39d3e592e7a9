"""How spaces of Gymnasium and the trees of a bundle fit each other.

A `Dict` space goes with a mapping, a named tuple or a dataclass of the same names, a `Tuple` space
with a tuple or list of the same length, and every other space with one array of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from serving import tree
from serving.action_values import action_values
from serving.errors import EvaluationError
from serving.manifest import Manifest

ActionMode = Literal["clip", "rescale"]

_OBSERVE = "convert what the environment gives with observe=, or export the policy for it"
_ACT = "convert what the policy gives with act=, or export a policy for this environment"


class ObservationAdapter:
    """Casts batched observations of an environment to those that a policy was exported with.

    float64 becomes float32, and integers and booleans those of the port if their values fit.
    Integers do not become floats: they may be an image's bytes or a choice, and mean something
    else as such.

    Args:
        manifest: says what the policy takes.
        space: the `single_observation_space` of the environments.

    Raises:
        EvaluationError: naming the leaf, its shape and dtype in the space and in the bundle.
    """

    def __init__(self, manifest: Manifest, space: Any) -> None:
        self._convert = _converter(manifest.observation, space, "obs")

    def __call__(self, observation: Any) -> Any:
        """Returns the observation in the dtypes of the bundle."""
        return self._convert(observation)


class ActionAdapter:
    """Turns a session's batched actions into those that the environments take.

    What the metadata tells the robot to apply is applied first: `action_scale` and
    `action_offset`, then `action_low` and `action_high`. Then, element by element, "clip" limits
    the action to the bounds of the space, and "rescale" maps -1..1 to them.

    Args:
        manifest: says what the policy gives.
        space: the `single_action_space` of the environments.
        mode: "clip" or "rescale".

    Raises:
        EvaluationError: if the space is not of numbers that change continuously, or does not fit.
    """

    def __init__(self, manifest: Manifest, space: Any, mode: ActionMode) -> None:
        if mode not in ("clip", "rescale"):
            raise EvaluationError(f"actions is {mode!r}, expected 'clip' or 'rescale'")
        self.elements = 0
        """Elements of all actions so far."""
        self.clipped = 0
        """How many of them were outside the bounds."""
        self._mode = mode
        self._robots = {} if manifest.metadata.action_applied_by == "policy" else _robots(manifest)
        self._convert = self._converter(manifest.action, space, "action")

    def __call__(self, action: Any) -> Any:
        """Returns the action in the structure and dtypes of the space."""
        return self._convert(action)

    def _converter(self, node: tree.Node, space: Any, path: str) -> Callable[[Any], Any]:
        if isinstance(node, tree.Leaf):
            return self._leaf(node, space, path)
        children = _children_of(node, space, path, _ACT)
        parts = {
            name: self._converter(child, inner, f"{path}.{name}") for name, child, inner in children
        }
        read = _reader(node)
        if _kind(space) == "Dict":
            return lambda action: {name: part(read(action, name)) for name, part in parts.items()}
        return lambda action: tuple(part(read(action, name)) for name, part in parts.items())

    def _leaf(self, leaf: tree.Leaf, space: Any, path: str) -> Callable[[np.ndarray], np.ndarray]:
        if _kind(space) != "Box":
            raise EvaluationError(
                f"{path}: the environment takes {space}, but a policy gives continuous actions; "
                "evaluate it in an environment whose actions are a Box, or choose among the "
                "discrete ones with act="
            )
        if list(space.shape) != leaf.shape or np.dtype(leaf.dtype).kind != "f":
            raise EvaluationError(
                f"{path}: the policy gives {leaf.dtype}{leaf.shape}, the environment takes "
                f"{space.dtype}{list(space.shape)}; {_ACT}"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if self._mode == "rescale" and not (np.isfinite(low) & np.isfinite(high)).all():
            raise EvaluationError(
                f"{path}: actions have no bounds to be rescaled to (from {low} to {high}); "
                "pass actions='clip'"
            )
        robots = self._robots.get(leaf.port or "", {})
        scale, offset = robots.get("action_scale", 1.0), robots.get("action_offset", 0.0)
        lower = robots.get("action_low", -math.inf)
        upper = robots.get("action_high", math.inf)

        def convert(action: np.ndarray) -> np.ndarray:
            wanted = np.clip(action * scale + offset, lower, upper)
            if self._mode == "rescale":
                wanted = low + (wanted + 1.0) * (0.5 * (high - low))
            sent = np.clip(wanted, low, high)
            self.elements += sent.size
            self.clipped += int(np.count_nonzero(sent != wanted))
            return sent.astype(space.dtype)

        return convert


def _robots(manifest: Manifest) -> dict[str, dict[str, np.ndarray]]:
    """What the robot has to apply to each port: field to values."""
    found: dict[str, dict[str, np.ndarray]] = {port.name: {} for port in manifest.action_ports}
    for field in ("action_scale", "action_offset", "action_low", "action_high"):
        values = action_values(manifest.metadata, field, manifest.action_ports)
        for port, value in zip(manifest.action_ports, values or [], strict=False):
            found[port.name][field] = value
    return found


def _converter(node: tree.Node, space: Any, path: str) -> Callable[[Any], Any]:
    kind = _kind(space)
    if isinstance(node, tree.Leaf):
        if kind in ("Dict", "Tuple"):
            raise EvaluationError(
                f"{path}: the policy takes {node.dtype}{node.shape}, the environment gives a "
                f"{kind} of {_names(space)}; {_OBSERVE}"
            )
        return _cast(node, space, path)
    parts = {
        name: _converter(child, inner, f"{path}.{name}")
        for name, child, inner in _children_of(node, space, path, _OBSERVE)
    }
    # A mapping is taken for a named tuple and a dataclass too.
    if kind == "Dict":
        return lambda given: {name: part(given[name]) for name, part in parts.items()}
    return lambda given: [part(given[name]) for name, part in parts.items()]


def _cast(leaf: tree.Leaf, space: Any, path: str) -> Callable[[Any], Any]:
    wanted = np.dtype(leaf.dtype)
    given = None if space.dtype is None else np.dtype(space.dtype)
    shape = None if space.shape is None else list(space.shape)
    fits = given is not None and shape == leaf.shape
    if not fits or given is None or not _same_kind(given.kind, wanted.kind):
        raise EvaluationError(
            f"{path}: the policy takes {leaf.dtype}{leaf.shape}, the environment gives "
            f"{'no array' if given is None else given.name}{shape}; {_OBSERVE}"
        )

    def cast(value: Any) -> np.ndarray:
        array = np.asarray(value)
        # What does not fit becomes an infinity, which the session refuses.
        with np.errstate(over="ignore"):
            converted = array.astype(wanted)
        if wanted.kind in "biu" and not np.array_equal(converted, array):
            raise EvaluationError(
                f"{path}: {array.tolist()} does not fit {wanted.name}; {_OBSERVE}"
            )
        return converted

    return cast


def _same_kind(given: str, wanted: str) -> bool:
    return given == wanted or {given, wanted} <= {"b", "i", "u"}


def _children_of(
    node: tree.Node, space: Any, path: str, advice: str
) -> list[tuple[Any, tree.Node, Any]]:
    """Pairs the children of a node with the spaces inside a space.

    Raises:
        EvaluationError: naming what either side has alone.
    """
    if isinstance(node, tree.List | tree.Tuple):
        names: list[Any] = list(range(len(node.children)))
        expected = "Tuple"
    else:
        names = list(node.keys if isinstance(node, tree.Dict) else getattr(node, "fields", []))
        expected = "Dict"
    children = dict(zip(names, getattr(node, "children", []), strict=True))
    if _kind(space) != expected:
        raise EvaluationError(
            f"{path}: the bundle has a {type(node).__name__.lower()} of {names}, the environment "
            f"{space}; {advice}"
        )
    inner = dict(space.items()) if expected == "Dict" else dict(enumerate(space))
    missing = [name for name in names if name not in inner]
    if expected == "Dict":
        missing = [name for name in missing if not _is_ignored(children[name])]
    surplus = [name for name in inner if name not in children]
    if missing or surplus:
        raise EvaluationError(
            f"{path}: the bundle has {names}, the environment {list(inner)}; {advice}"
        )
    return [(name, children[name], inner[name]) for name in names if name in inner]


def _is_ignored(node: tree.Node) -> bool:
    """Whether the policy does not use anything below a node."""
    return all(leaf.port is None for leaf in tree.leaves(node))


def _reader(node: tree.Node) -> Callable[[Any, Any], Any]:
    if isinstance(node, tree.NamedTuple | tree.Dataclass):
        return getattr
    return lambda action, name: action[name]


def _kind(space: Any) -> str:
    """The name of a space's class, or of the one of ours that it is derived from."""
    names = [base.__name__ for base in type(space).__mro__]
    return next((name for name in names if name in ("Box", "Dict", "Tuple")), names[0])


def _names(space: Any) -> list[Any]:
    return list(space.keys() if isinstance(space, Mapping) else range(len(space)))
