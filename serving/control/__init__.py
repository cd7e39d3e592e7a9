"""The control loop: timing, guards, faults, records, and what it asks of the system."""

from serving.control.actions import ActionGuard
from serving.control.faults import FaultEvent, FaultPolicy
from serving.control.loop import ControlLoop
from serving.control.observations import Stamped
from serving.control.realtime import RealTime
from serving.control.record_file import FlightRecord, read_record
from serving.control.recorder import FlightRecorder
from serving.control.replay import ReplayPass, ReplayReport, replay_record
from serving.control.report import LoopReport
from serving.control.settings import Watchdog

__all__ = [
    "ControlLoop",
    "LoopReport",
    "FaultPolicy",
    "ActionGuard",
    "Stamped",
    "Watchdog",
    "FlightRecorder",
    "RealTime",
    "FaultEvent",
    "read_record",
    "replay_record",
    "FlightRecord",
    "ReplayReport",
    "ReplayPass",
]
