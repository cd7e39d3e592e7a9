"""Rules from jaxpr primitives to plain TensorFlow operations.

A rule is a function `rule(lowering, equation, *inputs)` that returns the value of the equation's
output, or a list of them. Inputs are TensorFlow tensors; `tf.get_static_value` tells constants.

A value may be narrower than the jaxpr says: an axis of length 1 stands for the full length where
the value repeats along it (and a scalar for any shape). That keeps a bias a bias instead of a copy
per row. Rules that can work on such values are registered with `broadcasts=True`; all others
receive full arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]


class RuleTable:
    """The rules by primitive name."""

    def __init__(self) -> None:
        self._rules: dict[str, tuple[Rule, bool]] = {}

    def register(self, *primitives: str, broadcasts: bool = False) -> Callable[[Rule], Rule]:
        """Return a decorator that makes a function the rule of `primitives`.

        Raises:
            ValueError: A primitive has a rule already.
        """

        def decorate(rule: Rule) -> Rule:
            for primitive in primitives:
                if primitive in self._rules:
                    raise ValueError(f"primitive '{primitive}' already has a rule")
                self._rules[primitive] = (rule, broadcasts)
            return rule

        return decorate

    def find(self, primitive: str) -> tuple[Rule, bool] | None:
        """Return the rule of `primitive` and whether it works on narrow values."""
        return self._rules.get(primitive)

    @property
    def primitives(self) -> list[str]:
        """Names of all primitives with a rule, sorted."""
        return sorted(self._rules)


RULES = RuleTable()
"""All rules of this package; the modules beside this one fill it when imported."""


class NotLowerable(Exception):
    """A rule meets a case of its primitive that it has no exact translation for."""
