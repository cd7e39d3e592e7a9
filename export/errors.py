"""What can go wrong on the way from a network to a bundle.

Every error of this package derives from `ExportError`, so that a caller who only wants to know
whether an export went through needs one `except`.
"""

from __future__ import annotations


class ExportError(Exception):
    """An export or a comparison cannot go on; the message says what to change."""


class NetworkError(ExportError):
    """The network cannot be traced as one pure, batched step."""


class RandomnessError(NetworkError):
    """A random draw influences the action although the network is in `eval()` mode."""


class HiddenStateError(NetworkError):
    """The action depends on what the step itself rewrites in a module, outside the carry."""


class HostCallbackError(NetworkError):
    """The step calls back into Python, which does not exist where it will run."""


class DelayLayoutError(NetworkError):
    """A module depends on how a delay's past values lie in the carry."""


class UnsupportedOperationError(ExportError):
    """A primitive has no rule towards the portable formats.

    Attributes:
        primitive: Name of the JAX primitive.
        source: `file:line (function)` of the user's code that produced it.
        module_path: Path of the module whose `__call__` produced it.
        usable_formats: Formats that do not need the missing rule.
    """

    def __init__(
        self,
        primitive: str,
        *,
        source: str,
        module_path: str,
        reason: str = "",
        usable_formats: tuple[str, ...] = ("stablehlo", "saved_model (flavour xla)"),
    ):
        self.primitive = primitive
        self.source = source
        self.module_path = module_path
        self.usable_formats = usable_formats
        detail = f" ({reason})" if reason else ""
        super().__init__(
            f"no lowering rule for the JAX primitive '{primitive}'{detail}, used by module "
            f"'{module_path}' at {source}; formats onnx and saved_model (flavour portable) "
            "need one. "
            f"Rewrite that line with supported operations, or export only: "
            f"{', '.join(usable_formats)}"
        )


class ObservationSpecError(ExportError):
    """The example observation, recorded observations or their structure do not fit."""


class MetadataError(ExportError):
    """The metadata does not fit the policy's action."""


class CarryConversionError(ExportError):
    """A carry does not have the layout that the bundle was exported from or to."""


class ParityError(ExportError):
    """Parity could not be measured; a measured difference is a report, not an error."""


class MissingExtraError(ExportError):
    """A package of an optional extra is not installed; the message holds the command."""
