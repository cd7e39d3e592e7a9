"""Makes an exported policy act, with no JAX in the process.

Importing this package loads NumPy and the two libraries of the bundle format; a runtime is loaded
when a policy asks for it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from serving.bundle import Bundle, read_bundle
from serving.bundle_writer import BundleWriter
from serving.denormals import flush_denormals
from serving.errors import (
    ActionError,
    BundleError,
    CarryError,
    EvaluationError,
    FleetError,
    LoopError,
    ObservationError,
    PlantError,
    RecordError,
    RuntimeUnavailableError,
    SequenceLimitError,
    SequenceLostError,
    ServerError,
    ServingError,
    StepError,
    TreeError,
)
from serving.policy import Policy, load_policy
from serving.self_test import PortComparison, SelfTestReport, self_test
from serving.session import Session

if TYPE_CHECKING:
    from serving.control import (
        ActionGuard,
        ControlLoop,
        FaultEvent,
        FaultPolicy,
        FlightRecord,
        FlightRecorder,
        LoopReport,
        RealTime,
        ReplayPass,
        ReplayReport,
        Stamped,
        Watchdog,
        read_record,
        replay_record,
    )
    from serving.evaluation import EvaluationReport, evaluate_policy
    from serving.fleet import (
        Addresses,
        FleetSettings,
        RemotePolicy,
        TritonServer,
        write_model_repository,
    )
    from serving.mujoco_plant import MujocoPlant
    from serving.plant import PlantSummary, RemotePlant, serve_plant

_LATER = {
    "serving.control": (
        "ActionGuard",
        "ControlLoop",
        "FaultEvent",
        "FaultPolicy",
        "FlightRecord",
        "FlightRecorder",
        "LoopReport",
        "RealTime",
        "ReplayPass",
        "ReplayReport",
        "Stamped",
        "Watchdog",
        "read_record",
        "replay_record",
    ),
    "serving.evaluation": (
        "EvaluationReport",
        "evaluate_policy",
    ),
    "serving.fleet": (
        "Addresses",
        "FleetSettings",
        "RemotePolicy",
        "TritonServer",
        "write_model_repository",
    ),
    "serving.mujoco_plant": ("MujocoPlant",),
    "serving.plant": (
        "PlantSummary",
        "RemotePlant",
        "serve_plant",
    ),
}
"""What acting itself does not need is imported when it is asked for, which saves much of the time
that importing this package takes."""

__all__ = [
    "load_policy",
    "Policy",
    "Session",
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
    "self_test",
    "SelfTestReport",
    "PortComparison",
    "read_bundle",
    "Bundle",
    "BundleWriter",
    "RemotePlant",
    "serve_plant",
    "PlantSummary",
    "RemotePolicy",
    "TritonServer",
    "Addresses",
    "write_model_repository",
    "FleetSettings",
    "MujocoPlant",
    "evaluate_policy",
    "EvaluationReport",
    "flush_denormals",
    "ServingError",
    "BundleError",
    "TreeError",
    "ObservationError",
    "CarryError",
    "StepError",
    "ActionError",
    "RuntimeUnavailableError",
    "LoopError",
    "RecordError",
    "PlantError",
    "FleetError",
    "ServerError",
    "SequenceLostError",
    "SequenceLimitError",
    "EvaluationError",
]


def __getattr__(name: str) -> Any:
    """Imports what `_LATER` names."""
    for module, names in _LATER.items():
        if name in names:
            value = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists what is imported later too."""
    return sorted({*globals(), *__all__})
