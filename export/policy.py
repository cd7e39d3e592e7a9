"""Export a trained network into a bundle."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from export.action_scaling import settle_who_applies
from export.card import write_card
from export.describe import describe_structure
from export.errors import ExportError, MissingExtraError
from export.extra_outputs import checked_names, needs_recording
from export.formats.onnx_options import OnnxOptions
from export.metadata_fit import fit_metadata
from export.network_copy import reference_copy
from export.passes.pipeline import checked_passes
from export.report import check_templates, write_report
from export.reset_input import with_reset_input
from export.scaled_step import with_action_scaling
from export.step import Step, build_step
from export.trajectory import (
    GOLDEN_ROWS,
    Trajectory,
    generate_observations,
    record,
    reset_schedule,
)
from serving.action_values import check_action_values
from serving.bundle import Bundle
from serving.bundle_writer import BundleWriter
from serving.errors import BundleError
from serving.manifest import Artefact, Manifest, metadata_from

FORMATS = ("stablehlo", "saved_model", "onnx")
"""What is written unless asked otherwise."""
ALL_FORMATS = (*FORMATS, "litert", "c")
SAVED_MODEL_FLAVOURS = ("portable", "xla")
STABLEHLO_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

MAX_CONSTANT_BYTES = 2**31 - 2**24
"""A protocol buffer, and a FlatBuffer, ends below 2^31 bytes; the graph takes some of them."""

_GOLDEN_STEPS = 64
_VERSIONS_OF = (
    "jax",
    "jaxlib",
    "flax",
    "tensorflow-cpu",
    "tensorflow",
    "tf2onnx",
    "onnx",
    "emx-onnx-cgen",
    "numpy",
)


def export_policy(
    network: Any,
    observation: Any,
    path: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    batch_size: int | None = None,
    control_rate_hz: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    extra_outputs: Sequence[str] = (),
    reset_input: bool = False,
    apply_action_scaling: bool = False,
    name: str | None = None,
    onnx: OnnxOptions = OnnxOptions(),  # noqa: B008  (frozen)
    overwrite: bool = False,
    saved_model_flavours: Sequence[str] = SAVED_MODEL_FLAVOURS,
    stablehlo_platforms: Sequence[str] = ("cpu",),
    disabled_passes: Sequence[str] = (),
) -> Bundle:
    """Export the deterministic step of `network` into a bundle at `path`.

    The network is copied and the copy switched to `eval()`; `network` itself is not touched, also
    when the export fails. Only what the action needs is exported: no critic, no log-likelihoods,
    no carry that cannot influence an action.

    Args:
        network: A trained `flax.nnx.Module` with `initialize_state` and a call
            `(carry, observation) -> StatefulModuleOutput`, usually a `StatefulModule`.
        observation: One example without a batch axis, or the same tree of `jax.ShapeDtypeStruct`.
        path: Directory to create. It appears complete or not at all.
        formats: Any of `stablehlo`, `saved_model`, `onnx`, `litert`, `c`; default: the first three.
        batch_size: A fixed number of environments, or None for artefacts that take any.
        control_rate_hz: Rate at which the policy was trained to act.
        metadata: What a robot needs to know, see `serving.manifest.Metadata`; other keys are kept.
        extra_outputs: Names of what to put out beside the action: `value`, `distribution` (what the
            samplers were given), `activations.PATH` (what a module computed); each stands for all
            below it. Sessions have them as `extra_outputs`.
        reset_input: Give the artefacts one more input, `reset`, a boolean for each row: true starts
            it from the initial carry in that step.
        apply_action_scaling: Have the step itself scale, shift and limit the action, by
            `action_scale`, `action_offset`, `action_low` and `action_high` of the metadata; the
            manifest then says that they are applied. Without it they are for the robot to apply.
        name: Name of the policy; default: the directory's name.
        onnx: Operator set of the ONNX file and how it keeps its weights.
        overwrite: Replace a bundle that exists at `path`.
        saved_model_flavours: `portable` (plain TensorFlow operations) and/or `xla` (one XLA call).
        stablehlo_platforms: Platforms that the StableHLO artefact runs on, of `cpu`, `cuda`, `rocm`
            and `tpu`. One file serves all, but consumers other than JAX want a single platform.
        disabled_passes: Simplifications to leave out, to find out which one does what; any of
            `simplify_identities`, `drop_dead_columns`, `pack_delays`, `collapse_reshapes`,
            `fold_scales`, `merge_linear_maps`, `take_slots`, `split_slices`.

    Returns:
        The bundle, read back and checked.

    Raises:
        ExportError: The network cannot be exported as asked; the message says what to change.
        serving.BundleError: `path` exists or cannot be written, or the metadata is not JSON.

    Example:
        >>> import tempfile, numpy as np
        >>> from flax import nnx
        >>> from nnx_ppo.networks.factories import make_mlp_actor_critic
        >>> network = make_mlp_actor_critic(3, 1, [8], [8], nnx.Rngs(0))
        >>> target = tempfile.mkdtemp() + "/policy"
        >>> bundle = export_policy(network, np.zeros(3, np.float32), target, formats=["onnx"])
        >>> [port.name for port in bundle.manifest.action_ports]
        ['action']
    """
    check_templates()
    _check_choices("formats", formats, ALL_FORMATS)
    _check_choices("saved_model_flavours", saved_model_flavours, SAVED_MODEL_FLAVOURS)
    _check_choices("stablehlo_platforms", stablehlo_platforms, STABLEHLO_PLATFORMS)
    disabled_passes = checked_passes(disabled_passes)
    if name is not None and not (isinstance(name, str) and name.isprintable() and name):
        raise ExportError(f"name must be None or printable text, got {name!r}")
    control_rate_hz = _checked_rate(control_rate_hz)
    described = metadata_from(metadata)
    extras = checked_names(extra_outputs)
    with _writing_to(path), BundleWriter(path, overwrite=overwrite) as writer:

        def plain_step(rows: int | None) -> Step:
            return build_step(
                network,
                observation,
                batch_size=rows,
                extra_outputs=extras,
                disabled_passes=disabled_passes,
            )

        plain = plain_step(batch_size)
        _check_size(plain)
        described = fit_metadata(described, plain.action_ports)
        check_action_values(described, plain.action_ports)
        described, applied = settle_who_applies(described, in_step=apply_action_scaling)

        def finished(step: Step) -> Step:
            step = with_reset_input(step) if reset_input else step
            return with_action_scaling(step, described, applied) if applied else step

        step = finished(plain)
        manifest = Manifest(
            name=name if name is not None else Path(path).name,
            batch_size=batch_size,
            control_rate_hz=control_rate_hz,
            observation=step.observation_tree,
            action=step.action_tree,
            observation_ports=step.observation_ports,
            carry_ports=step.carry_ports,
            action_ports=step.action_ports,
            extra_outputs=list(extras),
            extra_output_ports=step.extra_output_ports,
            reset_port=step.reset_port,
            network_carry=step.network_carry,
            disabled_passes=list(step.disabled_passes),
            metadata=described,
            applied_to_action=applied,
            versions=_versions(),
            git_commit=_git_commit(),
            artefacts={},
        )
        golden = record_golden(manifest, step, network)
        manifest.artefacts.update(
            _write_artefacts(
                step,
                writer.path,
                manifest,
                formats,
                saved_model_flavours,
                onnx,
                tuple(p for p in STABLEHLO_PLATFORMS if p in stablehlo_platforms),
            )
        )
        if "c" in formats:
            for package in ("tensorflow", "tf2onnx", "onnx"):
                _require(package)
            _require("emx_onnx_cgen", extra="c")
            from export.formats.c import write_c

            # For one robot, whatever the batch size: in C a fleet is a loop.
            single = step if batch_size is None else finished(plain_step(1))
            single = dataclasses.replace(single, batch_size=1)
            manifest.artefacts["c"] = write_c(single, writer.path, manifest, golden)
        write_card(writer.path, manifest)
        structure = describe_structure(plain, writer.path, manifest.artefacts)
        return writer.commit(manifest, step.initial_carry, golden, structure, write_report)


@contextlib.contextmanager
def _writing_to(path: str | Path) -> Iterator[None]:
    """Inside, what the disk refuses is an error about `path`, not about a hidden one beside it."""
    try:
        yield
    except OSError as error:
        raise BundleError(path, f"cannot be written: {error}") from error


def record_golden(manifest: Manifest, step: Step, network: Any) -> dict[str, np.ndarray]:
    """Record the trajectory that every machine can replay to test itself.

    Returns:
        Observation, action, `next_carry` and extra output ports as `[T, B, ...]`, and `reset`
        `[T, B]` bool.
    """
    reference = step.reference
    if needs_recording(manifest.extra_outputs):
        reference = reference_copy(network, record=True)
    rows = step.batch_size or GOLDEN_ROWS
    observations = generate_observations(manifest, network, _GOLDEN_STEPS, rows, seed=1)
    reset = reset_schedule(_GOLDEN_STEPS, rows, seed=1)
    return golden_tensors(manifest, record(manifest, reference, observations, reset))


def golden_tensors(manifest: Manifest, trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Return a trajectory as the tensors of a golden file."""
    from serving import tree as serving_tree

    tensors: dict[str, np.ndarray] = {"reset": trajectory.reset}
    leaves = serving_tree.leaves(manifest.observation)
    for leaf, values in zip(leaves, trajectory.observations, strict=True):
        if leaf.port is not None:
            tensors[leaf.port] = values
    return tensors | trajectory.outputs


def _write_artefacts(
    step: Step,
    directory: Path,
    manifest: Manifest,
    formats: Sequence[str],
    flavours: Sequence[str],
    onnx: OnnxOptions,
    platforms: tuple[str, ...],
) -> dict[str, Artefact]:
    artefacts: dict[str, Artefact] = {}
    if "stablehlo" in formats:
        from export.formats.stablehlo import write_stablehlo

        artefacts["stablehlo"] = write_stablehlo(step, directory, platforms=platforms)
    if "saved_model" in formats:
        _require("tensorflow")
        from export.formats.saved_model import ENTRIES, write_saved_model

        for flavour in SAVED_MODEL_FLAVOURS:
            if flavour in flavours:
                artefacts[ENTRIES[flavour]] = write_saved_model(step, directory, flavour)
    if "onnx" in formats:
        for package in ("tensorflow", "tf2onnx", "onnx"):
            _require(package)
        from export.formats.onnx import write_onnx
        from export.formats.onnx_metadata import onnx_metadata

        properties = onnx_metadata(manifest, step.initial_carry)
        artefacts["onnx"] = write_onnx(step, directory, onnx, properties)
    if "litert" in formats:
        _require("tensorflow")
        from export.formats.litert import write_litert

        artefacts["litert"] = write_litert(step, directory)
    return artefacts


def _check_choices(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    fits = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 0
    if not fits or any(item not in known for item in given):
        raise ExportError(f"{what} must be a list of one or more of {known}, got {given!r}")


def _check_size(step: Step) -> None:
    """Refuse what no format can hold: all are written through messages of at most 2 GiB."""
    n_bytes = sum(int(getattr(constant, "nbytes", 0)) for constant in step.closed.consts)
    if n_bytes > MAX_CONSTANT_BYTES:
        raise ExportError(
            f"the step has {n_bytes / 2**30:.2f} GiB of weights and other constants, and no format "
            f"can be written with more than {MAX_CONSTANT_BYTES / 2**30:.2f} GiB; store them in "
            "fewer numbers, or export a smaller network"
        )


def _checked_rate(rate_hz: Any) -> float | None:
    if rate_hz is None:
        return None
    is_number = isinstance(rate_hz, Real) and not isinstance(rate_hz, bool)
    if not is_number or not 0 < float(rate_hz) < float("inf"):
        raise ExportError(f"control_rate_hz must be a positive number in hertz, got {rate_hz!r}")
    return float(rate_hz)


def _require(package: str, *, extra: str = "export") -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"this format needs the package {package}, which is not installed ({error}); run "
            f'`pip install "nnx-ppo-deploy[{extra}]"`'
        ) from error


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _VERSIONS_OF:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str | None:
    """Return the commit of the working directory, so that a policy can be traced to its code."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
