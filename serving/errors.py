"""Errors raised while a bundle is read or a policy acts.

Every message says what was wrong, what was given, what was expected and what to do next, and names
the file, tree path, tensor or runtime concerned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class ServingError(Exception):
    """Base of every error this package raises on purpose."""


class BundleError(ServingError):
    """A bundle cannot be read or written.

    Attributes:
        file: the file or directory the message is about.
        reason: what is wrong with it, without the file's name.
    """

    def __init__(self, file: str | Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = Path(file)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would pass the joined message to a two-argument constructor.
        return type(self), (self.file, self.reason)


class TreeError(ServingError):
    """A tree of values has not the structure that was exported; the message names the path."""


class ObservationError(ServingError):
    """An observation does not fit the policy. The carry is as it was before the call."""


class CarryError(ServingError):
    """A carry, a carry file or a choice of rows does not fit the session, which is unchanged."""


class StepError(ServingError):
    """The runtime failed during a step. The carry is as it was before the call."""


class ActionError(StepError):
    """A step gave an action or a carry that is not finite. The carry is as it was before it."""


class RuntimeUnavailableError(ServingError):
    """The runtime asked for is unknown, not installed, or its artefact is not in the bundle."""


class LoopError(ServingError):
    """A control loop stopped because a callback or the policy failed.

    The exception that stopped it is the `__cause__`, if one did.

    Attributes:
        report: what the loop had done until then, a `serving.LoopReport`; None when the loop did
            not start.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class RecordError(ServingError):
    """A flight record cannot be read, or does not belong to the bundle that is to replay it."""


class PlantError(ServingError):
    """The connection to a simulated plant failed, or the other side reported an error."""


class FleetError(ServingError):
    """A policy cannot be served to a fleet, or a server does not do what it was asked for."""


class ServerError(FleetError):
    """The inference server cannot be started or reached, has ended, or refuses a request."""


class SequenceLostError(FleetError):
    """The server has no carry for this robot any more, or nobody can say which one it has.

    It was idle for too long, the server was started anew, a request was lost or repeated. No action
    is given, and none will be until `RemotePolicy.reset` begins a new sequence.
    """


class SequenceLimitError(FleetError):
    """The server keeps as many sequences as it may; this one was not begun."""


class EvaluationError(ServingError):
    """A policy cannot be evaluated in an environment: the two do not fit each other."""
