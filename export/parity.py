"""Prove that each artefact of a bundle acts like the network it came from.

The reference is the user's network under `jax.jit`, in evaluation mode, otherwise untouched. Each
artefact runs in the session that a robot would use, over a trajectory with resets in the middle:
free running, feeding back its own carry, and teacher forced, given the reference's carry each step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.errors import ParityError
from export.extra_outputs import needs_recording
from export.network_copy import reference_copy
from export.parity_report import ParityReport, write_parity
from export.port_errors import PortErrors
from export.report import check_templates, write_report
from export.rounding_effect import rounding_effects
from export.trajectory import (
    Trajectory,
    generate_observations,
    given_observations,
    record,
    reset_schedule,
)
from serving import load_policy, read_bundle
from serving import tree as serving_tree
from serving.bundle import Bundle
from serving.latency import latency_histogram
from serving.manifest import Manifest
from serving.parity_record import Comparison, PortResult
from serving.self_test import outputs_by_port

TOLERANCES = {"stablehlo": 2e-6, "saved_model": 1e-5, "saved_model_xla": 1e-5, "onnx": 1e-5}
"""Per artefact, the absolute bound and, added to it, the bound relative to the reference."""

_PROFILE_POINTS = 200
"""How many points of the error over time a report keeps."""


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
    bounds = {**TOLERANCES, **_checked_tolerances(tolerances)}
    policies = {name: load_policy(bundle, runtime=name) for name in names}
    comparisons: list[Comparison] = []
    for batch_size in sizes:
        reference = _reference(manifest, network, observations, steps, batch_size, seed)
        for name, policy in policies.items():
            bound = bounds[name]
            if name not in (tolerances or {}):
                bound = max(bound, _stated_bound(manifest, name))
            free = _compare(policy, name, "free_running", reference, manifest, bound)
            forced = _compare(policy, name, "teacher_forced", reference, manifest, bound)
            if not free.passed and forced.passed:
                copy = reference_copy(network, record=needs_recording(manifest.extra_outputs))
                effects = rounding_effects(manifest, copy, reference, forced)
                free = _compare(policy, name, "free_running", reference, manifest, bound, effects)
            comparisons += [free, forced]
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


def _reference(
    manifest: Manifest, network: Any, observations: Any, steps: int, batch_size: int, seed: int
) -> Trajectory:
    if observations is None:
        leaves = generate_observations(manifest, network, steps, batch_size, seed)
    else:
        leaves = given_observations(manifest, observations, steps, batch_size)
    reset = reset_schedule(steps, batch_size, seed)
    copy = reference_copy(network, record=needs_recording(manifest.extra_outputs))
    _check_same_network(manifest, copy)
    return record(manifest, copy, leaves, reset)


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


_PIECE_ELEMENTS = 1 << 19
"""Elements of the largest port that are measured at a time: few enough for a processor's cache."""


def _compare(
    policy: Any,
    name: str,
    mode: str,
    reference: Trajectory,
    manifest: Manifest,
    bound: float,
    effects: Mapping[str, float] | None = None,
) -> Comparison:
    """Run one artefact over the reference trajectory and measure every port."""
    session = policy.session(reference.batch_size, check_finite=False)
    actions = {port: np.empty_like(values) for port, values in reference.actions.items()}
    recording = _Recording(manifest, reference, bound, effects or {})
    times_us = np.empty(reference.steps)
    for t in range(reference.steps):
        if mode == "teacher_forced" and t > 0 and manifest.carry_ports:
            session.carry = {port: values[t - 1] for port, values in reference.next_carry.items()}
        leaves = [values[t] for values in reference.observations]
        observation = serving_tree.unflatten(manifest.observation, leaves)
        begin = time.perf_counter()
        action = session.step(observation, reset=reference.reset[t])
        times_us[t] = (time.perf_counter() - begin) * 1e6
        outputs = outputs_by_port(session, action)
        for port, values in actions.items():
            values[t] = outputs[port]
        recording.add(outputs)
    return Comparison(
        runtime=name,
        mode=mode,
        batch_size=reference.batch_size,
        tolerance=bound,
        ports=recording.results(),
        step_median_us=float(np.median(times_us)),
        step_p99_us=float(np.percentile(times_us, 99)),
        error_over_time=_profile(actions, reference.actions),
        step_histogram=latency_histogram(times_us),
    )


class _Recording:
    """Measures the outputs of a session piece by piece while they come in."""

    def __init__(
        self,
        manifest: Manifest,
        reference: Trajectory,
        bound: float,
        effects: Mapping[str, float],
    ):
        self._expected = reference.outputs(manifest)
        largest = max(values[0].size for values in self._expected.values())
        self._length = min(reference.steps, max(1, _PIECE_ELEMENTS // max(1, largest)))
        self._piece = {
            name: np.empty((self._length, *values.shape[1:]), values.dtype)
            for name, values in self._expected.items()
        }
        self._errors = {
            name: PortErrors(name, bound, effects.get(name, 0.0)) for name in self._expected
        }
        self._filled = self._measured = 0

    def add(self, outputs: dict[str, Any]) -> None:
        """Take the outputs of the next step."""
        for name, value in outputs.items():
            self._piece[name][self._filled] = value
        self._filled += 1
        if self._filled == self._length:
            self._measure()

    def results(self) -> list[PortResult]:
        """Return what was found, port by port."""
        self._measure()
        return [errors.result() for errors in self._errors.values()]

    def _measure(self) -> None:
        end = self._measured + self._filled
        for name, errors in self._errors.items():
            errors.add(
                self._piece[name][: self._filled], self._expected[name][self._measured : end]
            )
        self._measured, self._filled = end, 0


def _profile(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> list[float]:
    """Return the largest action error per slice of time, for the plot."""
    per_step = np.zeros(next(iter(expected.values())).shape[0])
    for port, values in expected.items():
        a, e = actual[port].astype(np.float64), values.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.abs(a - e)
        error[(a == e) | (np.isnan(a) & np.isnan(e))] = 0.0
        error[np.isnan(error)] = np.inf
        error = error.reshape(error.shape[0], -1)
        per_step = np.maximum(per_step, error.max(axis=1, initial=0.0))
    parts = np.array_split(per_step, min(_PROFILE_POINTS, per_step.size))
    return [float(part.max()) for part in parts]
