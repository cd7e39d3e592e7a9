"""The names that users import are a promise: a change here is a change of the interface."""

import subprocess
import sys

import pytest

import export
import nnx_ppo
import serving
from nnx_ppo.cli.app import COMMANDS


def test_export_offers_these_names() -> None:
    assert export.__all__ == [
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


def test_serving_offers_these_names() -> None:
    assert serving.__all__ == [
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


def test_every_name_that_is_offered_is_there() -> None:
    for package in (export, serving, nnx_ppo):
        assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_the_training_package_is_light_and_has_a_version() -> None:
    assert nnx_ppo.__all__ == ["__version__"]
    assert nnx_ppo.__version__.count(".") == 2


def test_the_command_offers_these_subcommands() -> None:
    assert list(COMMANDS) == [
        "train",
        "export",
        "verify",
        "inspect",
        "report",
        "diff",
        "selftest",
        "run",
        "replay",
        "bench",
        "triton",
        "serve",
        "evaluate",
        "simulate",
        "demo",
    ]


def test_what_serving_imports_later_is_what_it_offers() -> None:
    for name in serving.__all__:
        assert getattr(serving, name) is not None and name in dir(serving)
    code = "import sys, serving; print([m for m in sys.modules if m.startswith('serving.control')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="module 'serving' has no attribute 'controlloop'"):
        getattr(serving, "controlloop")  # noqa: B009
