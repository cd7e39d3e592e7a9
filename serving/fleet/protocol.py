"""What `RemotePolicy` asks of a connection, whichever protocol it speaks."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"{s}int{n}": f"{s.upper()}INT{n}" for s in ("", "u") for n in (8, 16, 32, 64)},
}
"""NumPy's name of an element type to that of the inference protocol."""


class RefusedError(Exception):
    """The server answered, and refused the request; the message is what it said."""


class UnansweredError(Exception):
    """There is no answer: nobody can say whether the server has stepped."""


@dataclasses.dataclass(frozen=True)
class Inference:
    """One request."""

    model: str
    inputs: Sequence[tuple[str, np.ndarray]]
    """Names and contiguous arrays."""
    outputs: Sequence[str]
    """Names."""
    parameters: Mapping[str, str | int | bool]
    """Ours and those of the sequence: `sequence_id`, `sequence_start`, `sequence_end`."""


class Connection(abc.ABC):
    """A connection to a server, for one thread at a time."""

    @abc.abstractmethod
    def model_parameters(self, model: str, timeout_s: float) -> dict[str, str]:
        """Returns the parameters of a model's configuration.

        Raises:
            RefusedError: if the server has no such model.
            UnansweredError: if it does not answer in time.
        """

    @abc.abstractmethod
    def infer(self, request: Inference, timeout_s: float) -> dict[str, np.ndarray]:
        """Sends one request, once, and returns its outputs by name.

        Raises:
            RefusedError: if the server refuses it.
            UnansweredError: if there is no answer, or not in time.
        """

    @abc.abstractmethod
    def renew(self) -> None:
        """Makes the next request go through a new connection."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connection."""


def as_array(data: Any, datatype: str, shape: Sequence[int]) -> np.ndarray:
    """Makes an array of the bytes of a tensor.

    Raises:
        UnansweredError: if type, shape and bytes do not go together.
    """
    dtypes = {theirs: ours for ours, theirs in TYPES.items()}
    try:
        dtype = np.dtype(dtypes[datatype]).newbyteorder("<")
        return np.frombuffer(data, dtype).reshape(tuple(shape)).astype(dtype.newbyteorder("="))
    except (KeyError, ValueError) as error:
        raise UnansweredError(
            f"the answer makes no sense: {len(data)} bytes for {datatype}{list(shape)}"
        ) from error
