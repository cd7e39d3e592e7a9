"""What can be chosen about a model of a fleet's server."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Literal

from serving.errors import FleetError

Mode = Literal["sequences", "implicit_state", "stateless"]
"""Where the carry lies: in our model, by sequence; in the server itself; with the client."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclasses.dataclass(frozen=True)
class FleetSettings:
    """How a policy is served to many robots.

    Raises:
        FleetError: when a value is out of range.
    """

    mode: Mode = "sequences"
    """"sequences": our model keeps a carry for each sequence. "implicit_state": Triton's
    onnxruntime backend runs the ONNX file and keeps it. "stateless": the client sends the carry and
    gets the next one."""
    runtime: str = "onnx"
    """What steps the policy in our model, see `serving.load_policy`."""
    threads: int = 1
    """Threads of that runtime within an operator."""
    max_batch_size: int = 64
    """Most sequences stepped in one call."""
    max_sequences: int = 1024
    """Most sequences at a time; the next one is refused."""
    idle_timeout_s: float = 10.0
    """A sequence without a request for this long is forgotten, in seconds."""
    max_queue_delay_s: float = 0.0
    """How long a request may wait for others to be batched with, in seconds. Without, those are
    batched that arrive while the step before is running."""
    self_test: bool = True
    """Replay the golden trajectory before the model is ready, and do not load it if the actions
    are not the recorded ones."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.mode not in ("sequences", "implicit_state", "stateless"):
            raise FleetError(
                f"mode is {self.mode!r}, expected 'sequences', 'implicit_state' or 'stateless'"
            )
        _check_count("threads", self.threads, 1024)
        _check_count("max_batch_size", self.max_batch_size, 65536)
        _check_count("max_sequences", self.max_sequences, 1_000_000)
        _check_seconds("idle_timeout_s", self.idle_timeout_s, 1e-3, 86400.0)
        _check_seconds("max_queue_delay_s", self.max_queue_delay_s, 0.0, 60.0)

    @classmethod
    def from_json(cls, values: Any) -> FleetSettings:
        """Reads what `dataclasses.asdict` gave.

        Raises:
            FleetError: if fields are missing or surplus, or a value is out of range.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            raise FleetError(
                f"settings of the model: got {values!r}, expected the fields {names}; write the "
                "model repository again with: nnx-ppo triton"
            )
        return cls(**values)


def check_model_name(name: str) -> str:
    """Returns a model's name if it can be a directory's and part of an address.

    Raises:
        FleetError: if it cannot.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FleetError(
            f"{name!r} is no name for a model: expected up to 128 letters, digits, '-', '_' or "
            "'.', beginning with a letter or digit; choose one with --name"
        )
    return name


def model_name_of(policy: str) -> str:
    """Returns a policy's name with all that a model's name cannot hold replaced.

    >>> model_name_of("swing up/7")
    'swing_up_7'
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "_", policy).lstrip("_.-")[:128] or "policy"


def _check_count(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise FleetError(f"{name} is {value!r}, expected an integer from 1 to {most}")


def _check_seconds(name: str, value: Any, least: float, most: float) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not least <= number <= most:
        raise FleetError(f"{name} is {value!r}, expected from {least:g} to {most:g} seconds")
