"""The control loop: timing, guards, faults, records, and what it asks of the system."""

from serving.control.actions import ActionGuard
from serving.control.faults import FaultEvent, FaultPolicy
from serving.control.loop import ControlLoop
from serving.control.observations import Stamped
from serving.control.report import LoopReport

__all__ = [
    "ControlLoop",
    "LoopReport",
    "FaultPolicy",
    "ActionGuard",
    "Stamped",
    "FaultEvent",
]
