"""What a step can put out beside the action, and choosing from it by name.

Three families: `value`, the critic's estimate; `distribution`, the parameters that an action
sampler was given, as it reports them in its metrics; `activations`, what each module computed,
under the path by which `nnx_ppo.networks.recording` knows it. A name is a path joined by dots and
stands for all that lies below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from export.errors import ExportError, NetworkError
from export.structure import Path, flat_paths, leaf_names
from nnx_ppo.networks.recording import Recorder, extract_activations, with_recording
from nnx_ppo.networks.types import ACTIVATION_KEY, PPONetworkOutput

FAMILIES = ("value", "distribution", "activations")
_LISTED = 60


def checked_names(names: Any) -> tuple[str, ...]:
    """Return the names that a caller asked for.

    Raises:
        ExportError: They are no list of names.
    """
    fits = isinstance(names, Sequence) and not isinstance(names, str)
    if not fits or any(not isinstance(name, str) or not name for name in names):
        raise ExportError(
            "extra_outputs must be a list of names, such as ('value', 'distribution', "
            f"'activations.0'), got {names!r}"
        )
    return tuple(names)


def needs_recording(names: Sequence[str]) -> bool:
    """Return whether the network has to record what its modules compute."""
    return any(name != "value" for name in names)


def recording(network: Any) -> Any:
    """Return `network`, a private copy, with recorders at every module."""
    if any(isinstance(module, Recorder) for _, module in nnx.iter_modules(network)):
        return network
    return with_recording(network)


def choose(output: Any, names: Sequence[str]) -> dict[str, tuple[Path, Any]]:
    """Return what a network's output holds under `names`: tensor name → path and array.

    Args:
        output: What the network returned for one step, recording if `needs_recording(names)`.
        names: As the user gave them.

    Raises:
        NetworkError: A name stands for nothing; the message lists what there is.
    """
    if not names:
        return {}
    available = _available(output)
    chosen: dict[str, tuple[Path, Any]] = {}
    for name in names:
        found = {n: v for n, v in available.items() if n == name or n.startswith(f"{name}.")}
        if not found:
            raise NetworkError(_no_such_output(name, list(available), needs_recording(names)))
        chosen |= found
    return dict(sorted(chosen.items()))


def _no_such_output(name: str, available: list[str], recorded: bool) -> str:
    listed = ", ".join(available[:_LISTED]) or "none"
    more = f" and {len(available) - _LISTED} more" if len(available) > _LISTED else ""
    hint = "" if recorded else ", and those that start with distribution and activations"
    if not any(n == "value" or n.startswith("value.") for n in available):
        hint += "; 'value' is there for a network that ends in a PPOAdapter"
    return f"extra output {name!r} does not exist; this network has {listed}{more}{hint}"


def _available(output: Any) -> dict[str, tuple[Path, Any]]:
    trees: dict[str, Any] = {}
    if isinstance(output.output, PPONetworkOutput):
        trees["value"] = output.output.value_estimates
    metrics = getattr(output, "metrics", None)
    trees["distribution"] = _distribution(metrics)
    trees["activations"] = extract_activations(metrics)
    found: dict[str, tuple[Path, Any]] = {}
    for family in FAMILIES:
        flat = flat_paths(trees.get(family))
        for name, (path, leaf) in zip(leaf_names(family, [p for p, _ in flat]), flat, strict=True):
            found[name] = ((family, *path), leaf)
    return found


def _distribution(metrics: Any) -> dict[Any, Any]:
    """Return the parameters of each sampler, by the part of its path that tells it apart."""
    samplers = list(_samplers(metrics, ()))
    shared = 0
    if len(samplers) > 1:
        paths = [path for path, _ in samplers]
        while len({path[: shared + 1] for path in paths}) == 1:
            shared += 1
    elif samplers:
        shared = len(samplers[0][0])
    tree: dict[Any, Any] = {}
    for path, parameters in samplers:
        node = tree
        for key in path[shared:]:
            node = node.setdefault(key, {})
        node.update(parameters)
    return tree


def _samplers(metrics: Any, path: Path) -> Iterator[tuple[Path, dict[Any, Any]]]:
    if not isinstance(metrics, Mapping):
        return
    output = metrics.get(ACTIVATION_KEY)
    if isinstance(output, Mapping) and {"action", "log_likelihood"} <= set(output):
        yield path, {key: value for key, value in metrics.items() if key != ACTIVATION_KEY}
        return
    for key, part in metrics.items():
        yield from _samplers(part, (*path, key))
