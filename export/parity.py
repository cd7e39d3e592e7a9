"""Prove that each artefact of a bundle acts like the network it came from.

The reference is the user's network under `jax.jit`, in evaluation mode, otherwise untouched. Each
artefact runs in the session that a robot would use, over a trajectory with resets in the middle:
free running, feeding back its own carry, and teacher forced, given the reference's carry each step.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.errors import ParityError
from export.extra_outputs import needs_recording
from export.follower import Follower
from export.network_copy import reference_copy
from export.parity_report import ParityReport, write_parity
from export.report import check_templates, write_report
from export.rounding_effect import RoundingEffect
from export.trajectory import (
    ReferenceRun,
    generate_observations,
    given_observations,
    reset_schedule,
)
from serving import Policy, Session, load_policy, read_bundle
from serving import tree as serving_tree
from serving.bundle import Bundle
from serving.manifest import Manifest
from serving.parity_record import Comparison

TOLERANCES = {
    "stablehlo": 2e-6,
    "saved_model": 1e-5,
    "saved_model_xla": 1e-5,
    "onnx": 1e-5,
    "c": 1e-5,
    "litert": 1e-5,
}
"""Per artefact, the absolute bound and, added to it, the bound relative to the reference."""


def verify_parity(
    bundle: Bundle | str | Path,
    network: Any,
    *,
    observations: Any = None,
    steps: int = 1000,
    batch_sizes: Sequence[int] = (1, 3, 64),
    runtimes: Sequence[str] | None = None,
    tolerances: Mapping[str, float] | None = None,
    seed: int = 0,
    write: bool = True,
) -> ParityReport:
    """Compare every artefact of a bundle with the network, step by step and leaf by leaf.

    Args:
        bundle: The bundle, or its path.
        network: The trained network that was exported; it is not touched.
        observations: Recorded observations to use, the observation tree with leaves `[T, ...]` or
            `[T, B, ...]`; default: made from the network's normalizer, with corner cases.
        steps: Length of the trajectory, at least 3.
        batch_sizes: Batch sizes to run; a bundle of fixed batch size is run at that one only.
        runtimes: Artefacts to compare; default: all in the bundle.
        tolerances: Artefact → bound, both absolute and relative; default: `TOLERANCES`, or what an
            artefact of fewer digits states as `parity_bound` in the manifest.
        seed: Seed of the observations and resets.
        write: Write `parity.json` and `report.html` into the bundle.

    Returns:
        The report; `report.passed` is the verdict.

    Raises:
        ParityError: The comparison cannot be made, for example with another network.
        serving.ServingError: The bundle cannot be read or a runtime is missing.
    """
    if write:
        check_templates()
    bundle = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
    manifest = bundle.manifest
    names = _chosen_runtimes(manifest, runtimes)
    sizes = _chosen_sizes(manifest, batch_sizes)
    if type(steps) is not int or steps < 3:
        raise ParityError(
            f"steps must be an integer of at least 3, to have a reset in the middle, got {steps!r}"
        )
    if type(seed) is not int or seed < 0:
        raise ParityError(f"seed must be an integer of at least 0, got {seed!r}")
    limits = {name: max(TOLERANCES[name], _stated_bound(manifest, name)) for name in names}
    limits |= _checked_tolerances(tolerances)
    policies = {name: load_policy(bundle, runtime=name) for name in names}
    comparisons: list[Comparison] = []
    copy = reference_copy(network, record=needs_recording(manifest.extra_outputs))
    _check_same_network(manifest, copy)
    # Some runtimes compile for each batch size, which takes longer than the steps of a small one.
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        sessions = [pool.submit(_sessions, policies, batch_size) for batch_size in sizes]
        for batch_size, pairs in zip(sizes, sessions, strict=True):
            if observations is None:
                leaves = generate_observations(manifest, network, steps, batch_size, seed)
            else:
                leaves = given_observations(manifest, observations, steps, batch_size)
            run = ReferenceRun(manifest, copy, leaves, reset_schedule(steps, batch_size, seed))
            comparisons += _compare_all(run, pairs.result(), limits)
    report = ParityReport(
        policy=manifest.name,
        steps=steps,
        seed=seed,
        observations="recorded" if observations is not None else "generated",
        comparisons=comparisons,
        artefact_bytes={
            name: sum(file.size for file in manifest.artefacts[name].files) for name in names
        },
        manifest_sha256=bundle.fingerprint,
    )
    if write:
        _write(bundle, report)
    return report


def _write(bundle: Bundle, report: ParityReport) -> None:
    try:
        write_parity(bundle.path, report)
        write_report(bundle)
    except OSError as error:
        raise ParityError(
            f"the comparison is done, but its report cannot be written into {bundle.path}: "
            f"{error}; pass write=False (--no-write) to do without"
        ) from error


def _stated_bound(manifest: Manifest, name: str) -> float:
    """Return the bound that an artefact with fewer digits inside states, else zero."""
    stated = manifest.artefacts[name].details.get("parity_bound", 0)
    return float(stated) if isinstance(stated, int | float) else 0.0


def _chosen_runtimes(manifest: Manifest, runtimes: Sequence[str] | None) -> list[str]:
    if runtimes is None:
        return list(manifest.artefacts)
    missing = [name for name in runtimes if name not in manifest.artefacts]
    if missing or not runtimes or isinstance(runtimes, str):
        raise ParityError(
            f"runtimes must name artefacts of the bundle, {list(manifest.artefacts)}, got "
            f"{runtimes!r}"
        )
    return list(runtimes)


def _chosen_sizes(manifest: Manifest, batch_sizes: Sequence[int]) -> list[int]:
    if manifest.batch_size is not None:
        return [manifest.batch_size]
    sizes = list(batch_sizes) if isinstance(batch_sizes, Sequence) else []
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise ParityError(f"batch_sizes must be a list of integers above 0, got {batch_sizes!r}")
    return sizes


def _checked_tolerances(tolerances: Mapping[str, float] | None) -> dict[str, float]:
    """Return the caller's bounds; NaN would let everything pass, a typo change nothing."""
    given = dict(tolerances or {})
    for name, bound in given.items():
        if name not in TOLERANCES or not 0 <= bound < float("inf"):
            raise ParityError(
                f"tolerances: {name!r} is {bound!r}; expected numbers of at least 0 for some of "
                f"{list(TOLERANCES)}"
            )
    return given


def _check_same_network(manifest: Manifest, copy: Any) -> None:
    carry = copy.initialize_state(1)
    try:
        leaves = serving_tree.flatten(manifest.network_carry.tree, carry, root="carry")
    except Exception as error:
        raise ParityError(
            f"the network's carry does not have the structure recorded in the bundle ({error}); "
            "pass the network that was exported"
        ) from error
    for described, leaf in zip(manifest.network_carry.leaves, leaves, strict=True):
        shape = list(leaf.shape[1:])
        if described.key_impl is None and shape != described.shape:
            raise ParityError(
                f"the network's carry has a leaf of shape {shape} where the bundle recorded "
                f"{described.shape}; pass the network that was exported"
            )


def _sessions(
    policies: Mapping[str, Policy], batch_size: int
) -> dict[str, tuple[Session, Session]]:
    """Return two sessions of each artefact."""

    def session(policy: Policy) -> Session:
        return policy.session(batch_size, check_finite=False)

    return {name: (session(policy), session(policy)) for name, policy in policies.items()}


def _compare_all(
    run: ReferenceRun,
    sessions: Mapping[str, tuple[Session, Session]],
    bounds: Mapping[str, float],
) -> list[Comparison]:
    """Compare every artefact in both modes, side by side."""
    steps = len(run.reset)
    effect = RoundingEffect(run)
    followers: list[tuple[Follower, Follower]] = []
    for name, (one, other) in sessions.items():
        forced = Follower(one, name, "teacher_forced", steps, bounds[name])
        effects = functools.partial(_effects, effect, forced)
        free = Follower(other, name, "free_running", steps, bounds[name], effects=effects)
        followers.append((free, forced))
    first = 0
    before: dict[str, np.ndarray] = {}
    for piece in run.pieces():
        for free, forced in followers:
            # The forced one first: the other is judged by its errors too.
            for follower in (forced, free):
                follower.follow(first, run.observations, run.reset, piece, before)
        before = {name: values[-1] for name, values in piece.items()}
        first += len(next(iter(piece.values())))
    return [one.comparison() for pair in followers for one in pair]


def _effects(effect: RoundingEffect, forced: Follower) -> dict[str, np.ndarray]:
    """Return by how much to widen the bounds of a session that runs free."""
    # A step that is wrong is no rounding.
    return {} if forced.violated else effect.of(forced.errors)
