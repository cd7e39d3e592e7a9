"""From jaxpr to plain TensorFlow operations: the portable SavedModel, and ONNX by way of it."""

from export.lowering import (
    arithmetic,
    bitwise,
    control_flow,
    convolution,
    cumulative,
    dynamic_slicing,
    elementwise,
    gather,
    linear,
    pooling,
    reduction,
    scatter,
    shape,
    sorting,
    special_functions,
)
from export.lowering.interpreter import Lowering
from export.lowering.registry import RULES, NotLowerable

__all__ = ["RULES", "Lowering", "NotLowerable"]

# Importing a module of rules registers them.
_RULE_MODULES = (
    arithmetic,
    bitwise,
    control_flow,
    convolution,
    cumulative,
    dynamic_slicing,
    elementwise,
    gather,
    linear,
    pooling,
    reduction,
    scatter,
    shape,
    sorting,
    special_functions,
)
