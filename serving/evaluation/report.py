"""What an evaluation found."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Episode:
    """One whole episode."""

    episode_return: float
    """Sum of its rewards."""
    length: int
    """Steps, the last included."""
    terminated: bool
    """Whether the task ended it; False if it was cut by a limit of time or steps."""


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """Episodes of one policy in one environment."""

    policy: str
    """Name of the policy."""
    runtime: str
    """What stepped it."""
    environment: str
    """The environment's ID, or the name of its class."""
    seed: int
    """Seed of the first episode."""
    num_envs: int
    """Environments stepped together, each a row of the session."""
    episodes: tuple[Episode, ...]
    """The episodes, in the order in which they were begun."""
    clipped_share: float
    """Share of the action's elements that were outside their bounds and were clipped."""

    @property
    def returns(self) -> np.ndarray:
        """Returns of the episodes, float64."""
        return np.array([episode.episode_return for episode in self.episodes])

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of the episodes in steps."""
        return np.array([episode.length for episode in self.episodes])

    @property
    def mean_return(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def standard_error(self) -> float:
        """Standard error of the mean return; NaN for one episode."""
        count = len(self.episodes)
        return float(self.returns.std(ddof=1) / count**0.5) if count > 1 else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values, with the statistics that a reader wants first."""
        returns = self.returns
        return {
            "policy": self.policy,
            "runtime": self.runtime,
            "environment": self.environment,
            "seed": self.seed,
            "num_envs": self.num_envs,
            "episodes": len(self.episodes),
            "mean_return": self.mean_return,
            "standard_error": self.standard_error if len(self.episodes) > 1 else None,
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(self.lengths.mean()),
            "terminated": sum(episode.terminated for episode in self.episodes),
            "clipped_share": self.clipped_share,
            "returns": returns.tolist(),
            "lengths": self.lengths.tolist(),
        }
