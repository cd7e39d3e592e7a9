"""The first line of every overview: is it proven that the artefacts act as the network did?"""

from __future__ import annotations

import dataclasses
from typing import Literal

from serving.bundle import Bundle
from serving.errors import BundleError
from serving.overview.sections import error_text, plural, printable
from serving.parity_record import ParityRecord, read_parity


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known about a bundle's parity with the network."""

    state: Literal["passed", "failed", "unverified"]
    headline: str
    """One line."""
    details: list[str]
    """Sentences that say more."""
    parity: ParityRecord | None = None
    """The record behind the verdict; None where none counts."""


def verdict_on(bundle: Bundle) -> Verdict:
    """Reads `parity.json` beside a bundle and says what it proves. Raises nothing."""
    try:
        parity = read_parity(bundle.path)
    except BundleError as error:
        return Verdict("unverified", "Not verified: parity.json is damaged", [str(error.reason)])
    if parity is None:
        return Verdict(
            "unverified",
            "Not verified yet",
            [
                "Nothing proves yet that these files act as the network did. "
                "`nnx-ppo verify` compares them with it."
            ],
        )
    return judged(bundle, parity)


def judged(bundle: Bundle, parity: ParityRecord) -> Verdict:
    """Says what a record proves about a bundle."""
    if parity.manifest_sha256 != bundle.fingerprint:
        return Verdict(
            "unverified",
            "Not verified: parity.json belongs to another export",
            [
                "It names a manifest of another content, so it proves nothing about these files. "
                "`nnx-ppo verify` compares them."
            ],
        )
    return _passed(bundle, parity) if parity.passed else _failed(parity)


def _passed(bundle: Bundle, parity: ParityRecord) -> Verdict:
    compared = {comparison.runtime for comparison in parity.comparisons}
    left = [name for name in bundle.manifest.artefacts if name not in compared]
    done = [name for name in bundle.manifest.artefacts if name in compared]
    headline = "Parity passed"
    if left:
        headline += f" for {', '.join(done)}; not compared: {', '.join(left)}"
    worst = parity.worst
    return Verdict(
        "passed",
        headline,
        [
            f"Worst error {error_text(worst.worst.max_abs_error)} in "
            f"{printable(worst.worst.name)} of {worst.runtime}, bound "
            f"{error_text(worst.tolerance)} absolute plus as much relative ({_where(parity)}).",
            *_astray(parity),
            _how(parity),
        ],
        parity,
    )


def _astray(parity: ParityRecord) -> list[str]:
    """Says what free running proves of a network that amplifies rounding."""
    effect = max(comparison.rounding_effect for comparison in parity.comparisons)
    if not effect:
        return []
    return [
        "The network amplifies rounding from step to step: errors as small as those of one step "
        f"move it by up to {error_text(effect)} over the trajectory, so where an artefact left its "
        "bound running free, that was added to it. Given the network's carry in each step, every "
        "artefact stays within the bound itself."
    ]


def _failed(parity: ParityRecord) -> Verdict:
    failed = [comparison for comparison in parity.comparisons if not comparison.passed]
    names = list(dict.fromkeys(comparison.runtime for comparison in failed))
    worst = parity.worst
    drifting = []
    if all(comparison.mode == "free_running" for comparison in failed):
        drifting.append(
            "Given the network's carry in each step, every artefact stays within its bound; but "
            "running free it goes further astray than rounding takes the network itself "
            f"({error_text(worst.rounding_effect)})."
        )
    return Verdict(
        "failed",
        f"Parity FAILED: {', '.join(names)} act{'s' if len(names) == 1 else ''} otherwise than "
        "the network",
        [
            f"{plural(worst.worst.violations, 'element')} of {printable(worst.worst.name)} in "
            f"{worst.runtime} outside the bound of {error_text(worst.tolerance)}, the largest "
            f"error {error_text(worst.worst.max_abs_error)}, worst at step "
            f"{worst.worst.worst_step}, row {worst.worst.worst_row} ({_where(parity)}).",
            *drifting,
            _how(parity),
        ],
        parity,
    )


def _where(parity: ParityRecord) -> str:
    worst = parity.worst
    return f"batch {worst.batch_size}, {printable(worst.mode).replace('_', ' ')}"


def _how(parity: ParityRecord) -> str:
    sizes = sorted({comparison.batch_size for comparison in parity.comparisons})
    return (
        f"Compared over {plural(parity.steps, 'step')} with resets at batch "
        f"{', '.join(map(str, sizes))}, {printable(parity.observations)} observations, "
        f"seed {parity.seed}."
    )
