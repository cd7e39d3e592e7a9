"""Turn a trained network into a bundle that acts without JAX, and prove that it acts the same."""

from export.installed import check_installed

check_installed()

from export.carry_conversion import to_exported_carry, to_network_carry
from export.errors import (
    CarryConversionError,
    DelayLayoutError,
    ExportError,
    HiddenStateError,
    HostCallbackError,
    MetadataError,
    MissingExtraError,
    NetworkError,
    ObservationSpecError,
    ParityError,
    RandomnessError,
    UnsupportedOperationError,
)
from export.formats.onnx_options import OnnxOptions
from export.parity import verify_parity
from export.parity_report import ParityReport
from export.policy import export_policy
from export.report import write_report
from serving.parity_record import Comparison, PortResult

__all__ = [
    "export_policy",
    "OnnxOptions",
    "verify_parity",
    "write_report",
    "ParityReport",
    "Comparison",
    "PortResult",
    "to_exported_carry",
    "to_network_carry",
    "ExportError",
    "NetworkError",
    "RandomnessError",
    "HiddenStateError",
    "HostCallbackError",
    "DelayLayoutError",
    "UnsupportedOperationError",
    "ObservationSpecError",
    "MetadataError",
    "CarryConversionError",
    "ParityError",
    "MissingExtraError",
]
