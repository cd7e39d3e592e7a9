"""Evaluates a policy in environments with Gymnasium's interface, which is imported when used."""

from serving.evaluation.episodes import evaluate_policy
from serving.evaluation.report import Episode, EvaluationReport

__all__ = ["evaluate_policy", "EvaluationReport", "Episode"]
