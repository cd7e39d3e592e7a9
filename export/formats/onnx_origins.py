"""Which module each operation of an ONNX model comes from, for errors."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf
from jax.extend import core as jcore

from export.formats.onnx import operations
from export.lowering import Lowering
from export.module_scopes import module_path_of
from export.step import Step

_SCOPE = "from."


class _NamingLowering(Lowering):
    """Puts the path of the module on the name of every operation."""

    def _run_equation(self, equation: jcore.JaxprEqn, values: dict[Any, Any]) -> None:
        path = re.sub(r"[^A-Za-z0-9_.\-]", "-", module_path_of(equation))
        # With a slash at its end a name is used as it is, and not numbered.
        with tf.name_scope(f"{_SCOPE}{path}/"):
            super()._run_equation(equation, values)


def modules_by_operation(step: Step) -> dict[str, list[str]]:
    """Return operation type → paths of the modules that it comes from, as far as names tell.

    Converts the step once more.
    """
    found: dict[str, list[str]] = {}
    for kind, name in operations(step, _NamingLowering):
        match = re.match(rf"{re.escape(_SCOPE)}([^/]+)/", name)
        paths = found.setdefault(kind, [])
        if match and match.group(1) not in paths:
            paths.append(match.group(1))
    return found
