"""Replays a bundle's recorded trajectory on this machine and compares."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from serving import tree
from serving.bundle import RESET
from serving.errors import ServingError
from serving.policy import Policy
from serving.session import Session

TOLERANCES = {"stablehlo": 2e-6}
"""Largest absolute and relative error by runtime; `DEFAULT_TOLERANCE` for the others."""

DEFAULT_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class PortComparison:
    """How close one action or carry tensor came over the whole trajectory."""

    name: str
    """Output port: an action, the next carry, or an extra output."""
    max_abs_error: float
    """Largest |actual - expected|."""
    max_rel_error: float
    """Largest |actual - expected| / |expected| where expected is not zero."""
    worst_step: int
    """Step at which the error was largest in relation to the tolerance."""
    non_finite: int
    """Elements that are NaN or infinite on one side and something else on the other."""
    passed: bool
    """Whether every element was within the tolerance."""


@dataclasses.dataclass(frozen=True)
class SelfTestReport:
    """Result of `self_test`."""

    policy: str
    """Name of the policy."""
    runtime: str
    """Runtime that was tested."""
    steps: int
    """Steps replayed."""
    batch_size: int
    """Rows stepped at once."""
    max_abs_error: float
    """Absolute part of the tolerance."""
    max_rel_error: float
    """Relative part of the tolerance."""
    ports: list[PortComparison]
    """One comparison for each action and carry tensor."""

    @property
    def passed(self) -> bool:
        """Whether every port passed."""
        return all(port.passed for port in self.ports)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values; an error that is not finite becomes null."""
        values = {"passed": self.passed, **dataclasses.asdict(self)}
        for port in values["ports"]:
            for key, value in port.items():
                if isinstance(value, float) and not math.isfinite(value):
                    port[key] = None
        return values


def self_test(
    policy: Policy,
    *,
    max_abs_error: float | None = None,
    max_rel_error: float | None = None,
) -> SelfTestReport:
    """Replays the golden trajectory with the resets it has and compares actions and carry.

    The session runs free: it is given the observations only and keeps its own carry, so that errors
    which grow over time show. An element passes if its error is at most
    `max_abs_error + max_rel_error * |expected|`; equal NaNs and infinities pass, integers and
    booleans must be equal.

    Args:
        policy: the policy with the runtime to test.
        max_abs_error: absolute tolerance; None for the runtime's own, 1e-5 or 2e-6 for StableHLO,
            or what an artefact with float16 or int8 weights states in the manifest.
        max_rel_error: relative tolerance; likewise.

    Returns:
        The report; `passed` is the verdict.

    Raises:
        ServingError: if a step raises.
    """
    default = _default_tolerance(policy)
    absolute = default if max_abs_error is None else max_abs_error
    relative = default if max_rel_error is None else max_rel_error
    if not (0 <= absolute < math.inf and 0 <= relative < math.inf):
        raise ServingError(f"tolerances must be finite and not negative: {absolute}, {relative}")
    golden = policy.bundle.golden
    steps, rows = golden[RESET].shape
    # Recorded observations may hold extreme values on purpose, so they are not judged here.
    session = policy.session(rows, check_finite=False)
    actual = replay(session, golden)
    comparisons = [
        compare_port(name, values, golden[name], absolute, relative)
        for name, values in actual.items()
    ]
    return SelfTestReport(
        policy=policy.name,
        runtime=policy.runtime_name,
        steps=steps,
        batch_size=rows,
        max_abs_error=absolute,
        max_rel_error=relative,
        ports=comparisons,
    )


def _default_tolerance(policy: Policy) -> float:
    """Returns the runtime's tolerance, or what an artefact of fewer digits says it needs."""
    default = TOLERANCES.get(policy.runtime_name, DEFAULT_TOLERANCE)
    stated = policy.manifest.artefacts[policy.runtime_name].details.get("parity_bound")
    return max(default, float(stated)) if isinstance(stated, int | float) else default


def replay(session: Session, golden: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns what the session gives, in the layout of the golden trajectory."""
    manifest = session.manifest
    observed = [leaf.port for leaf in tree.leaves(manifest.observation)]
    names = [port.name for port in manifest.action_ports]
    names += [port.next_name for port in manifest.carry_ports]
    names += [port.name for port in manifest.extra_output_ports]
    actual = {name: np.zeros_like(golden[name]) for name in names}
    for t, reset in enumerate(golden[RESET]):
        # A leaf without a port is not recorded, and sessions ignore what stands there.
        leaves = [None if name is None else golden[name][t] for name in observed]
        action = session.step(tree.unflatten(manifest.observation, leaves), reset=reset)
        for name, value in outputs_by_port(session, action).items():
            actual[name][t] = value
    return actual


def outputs_by_port(session: Session, action: Any) -> dict[str, np.ndarray]:
    """Returns what the step put out that gave `action`: output port → array.

    Args:
        session: The session after the step.
        action: What `session.step` returned.
    """
    manifest = session.manifest
    acted = [str(leaf.port) for leaf in tree.leaves(manifest.action)]
    carry = session.carry
    return {
        **dict(zip(acted, tree.flatten(manifest.action, action), strict=True)),
        **{port.next_name: carry[port.name] for port in manifest.carry_ports},
        **session.extra_outputs,
    }


def compare_port(
    name: str, actual: np.ndarray, expected: np.ndarray, absolute: float, relative: float
) -> PortComparison:
    """Compares a tensor over a trajectory, [T, ...], with tolerances as in `self_test`."""
    exact = expected.dtype.kind != "f"
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    same = (actual == expected) | (np.isnan(a) & np.isnan(b))
    mismatch = ~same & ~(np.isfinite(a) & np.isfinite(b))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(same, 0.0, np.where(mismatch, np.inf, np.abs(a - b)))
        allowed = 0.0 if exact else absolute + relative * np.where(np.isfinite(b), np.abs(b), 0.0)
        # Integers above 2**53 can differ and still have a difference of zero in float64.
        wrong = ~same if exact else error > allowed
        badness = np.where(wrong, np.inf, error) if exact else error / (allowed + 1e-300)
        rel = np.where(b != 0.0, error / np.abs(b), 0.0)
    worst = int(np.argmax(badness.reshape(len(badness), -1).max(axis=1, initial=0.0)))
    return PortComparison(
        name=name,
        max_abs_error=float(error.max(initial=0.0)),
        max_rel_error=float(np.where(np.isnan(rel), np.inf, rel).max(initial=0.0)),
        worst_step=worst,
        non_finite=int(mismatch.sum()),
        passed=not bool(wrong.any()),
    )
