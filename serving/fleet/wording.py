"""How an error crosses the wire: its kind in words at the start of the message, and back.

Any client can read these messages. `RemotePolicy` makes the exceptions of them again.
"""

from __future__ import annotations

from serving.errors import (
    ActionError,
    CarryError,
    ObservationError,
    SequenceLimitError,
    SequenceLostError,
    ServingError,
    StepError,
)

# The more special kind first.
_KINDS: dict[str, type[ServingError]] = {
    "sequence lost": SequenceLostError,
    "sequence limit": SequenceLimitError,
    "observation refused": ObservationError,
    "carry refused": CarryError,
    "action refused": ActionError,
    "step failed": StepError,
}

# What Triton itself says of a request that continues a sequence which it does not know.
_NOT_STARTED = "must specify the START flag"


def to_message(error: ServingError) -> str:
    """Returns an error's message with its kind before it.

    >>> to_message(ObservationError("obs: nan; observations must be finite"))
    'observation refused: obs: nan; observations must be finite'
    """
    for kind, family in _KINDS.items():
        if isinstance(error, family):
            return f"{kind}: {error}"
    return str(error)


def from_message(message: str) -> ServingError | None:
    """Returns the exception that a message stands for, or None if it stands for none of them.

    >>> from_message("sequence limit: 64 are active")
    SequenceLimitError('64 are active')
    """
    for kind, family in _KINDS.items():
        _, found, rest = message.partition(f"{kind}: ")
        if found:
            return family(rest)
    if _NOT_STARTED in message:
        return SequenceLostError(
            f"the server does not know the sequence: it was idle for too long, or the server was "
            f"started anew or is another one ({message})"
        )
    return None
