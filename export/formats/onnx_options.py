"""What a user may choose about the ONNX file."""

from __future__ import annotations

import dataclasses
from typing import Literal

from export.errors import ExportError

LOWEST_OPSET = 7
"""The oldest that ONNX Runtime reads."""
HIGHEST_OPSET = 18
"""The newest that tf2onnx writes; every onnxruntime that the extras allow reads it."""
LOWEST_INT8_OPSET = 11
"""The oldest that rounds, which int8 layers need."""


@dataclasses.dataclass(frozen=True)
class OnnxOptions:
    """How the ONNX file is written.

    Raises:
        ExportError: A field has a value that does not exist.
    """

    opset: int = HIGHEST_OPSET
    """ONNX operator set."""
    external_data: bool = False
    """Keep the weights in a file of their own beside the model, `policy.onnx.data`."""
    weights: Literal["float32", "float16"] = "float32"
    """How weights of layers are stored. float16 halves the file; the step computes in float32
    either way."""
    int8_min_weights: int | None = None
    """Layers with at least so many weights are computed in int8, their inputs quantized row by row
    at run time; None for no layer. A quarter of the size, and a price that parity shows."""

    def __post_init__(self) -> None:
        if type(self.opset) is not int or not LOWEST_OPSET <= self.opset <= HIGHEST_OPSET:
            raise ExportError(
                f"opset must be an integer from {LOWEST_OPSET} to {HIGHEST_OPSET}, got "
                f"{self.opset!r}"
            )
        if type(self.external_data) is not bool:
            raise ExportError(f"external_data must be True or False, got {self.external_data!r}")
        if self.weights not in ("float32", "float16"):
            raise ExportError(f"weights must be 'float32' or 'float16', got {self.weights!r}")
        least = self.int8_min_weights
        if least is not None and (type(least) is not int or least < 1):
            raise ExportError(
                f"int8_min_weights must be None or an integer of at least 1, got {least!r}"
            )
        if least is not None and self.opset < LOWEST_INT8_OPSET:
            raise ExportError(
                f"int8 layers need opset {LOWEST_INT8_OPSET} or newer, got opset {self.opset}"
            )
