"""Turn a trained network into a bundle that acts without JAX, and prove that it acts the same."""

from export.errors import (
    CarryConversionError,
    ExportError,
    HiddenStateError,
    MissingExtraError,
    NetworkError,
    ObservationSpecError,
    ParityError,
    RandomnessError,
    UnsupportedOperationError,
)
from export.policy import export_policy

__all__ = ["export_policy"]
