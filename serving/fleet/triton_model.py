"""What Triton's Python backend runs: `model.py` of a repository imports the class from here.

Only importable within that backend, which provides `triton_python_backend_utils`.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np

# A module of the backend's own.
import triton_python_backend_utils as backend  # pyright: ignore[reportMissingImports]

from serving.bundle import read_bundle
from serving.errors import SequenceLimitError, ServingError, StepError
from serving.fleet.exchange import row
from serving.fleet.model_config import SETTINGS_PARAMETER
from serving.fleet.sequences import Request, Sequences
from serving.fleet.settings import FleetSettings
from serving.fleet.stateless import CarryInAndOut
from serving.fleet.wording import to_message
from serving.manifest import Port
from serving.policy import Policy
from serving.runtimes import load_runtime
from serving.self_test import self_test

BUNDLE_DIRECTORY = "bundle"
"""The bundle's, beside `model.py`."""


class TritonPythonModel:
    """Steps a bundle for a fleet; the carry of each robot is kept by its correlation ID."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the bundle; called once before the first request.

        Args:
            args: Triton's: configuration, place and version of the model.

        Raises:
            ServingError: if the bundle or the settings cannot be used; Triton then refuses to load
                the model with this message.
        """
        _check_exchange()
        config = json.loads(args["model_config"])
        settings = FleetSettings.from_json(
            json.loads(config["parameters"][SETTINGS_PARAMETER]["string_value"])
        )
        bundle = read_bundle(
            Path(args["model_repository"]) / args["model_version"] / BUNDLE_DIRECTORY
        )
        options = {"threads": settings.threads} if settings.runtime in ("onnx", "litert") else {}
        runtime = load_runtime(bundle, settings.runtime, options)
        if settings.self_test:
            _check_actions(Policy(bundle, settings.runtime, runtime))
        manifest = bundle.manifest
        self._observation_ports = list(manifest.observation_ports)
        self._output_ports: list[Port] = [*manifest.action_ports, *manifest.extra_output_ports]
        self._stateless: CarryInAndOut | None = None
        if settings.mode == "stateless":
            self._stateless = CarryInAndOut(bundle, runtime, max_batch_size=settings.max_batch_size)
            return
        self._sequences = Sequences(
            bundle,
            runtime,
            max_batch_size=settings.max_batch_size,
            max_sequences=settings.max_sequences,
            idle_timeout_s=settings.idle_timeout_s,
        )
        self._metrics = _Metrics(args["model_name"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers requests, each of one robot, or of several in a stateless model.

        Returns:
            A response for each request, in order. What is wrong with one is in its response;
            nothing is raised.
        """
        if self._stateless is not None:
            model = self._stateless
            inputs = [{name: _input(r, name) for name in model.inputs} for r in requests]
            return [self._answer_stateless(result) for result in model.step(inputs)]
        results = self._sequences.step([self._read(request) for request in requests])
        self._metrics.update(self._sequences)
        return [self._answer(result) for result in results]

    def _read(self, request: Any) -> Request:
        flags = request.flags()
        parameters = json.loads(request.parameters() or "{}")
        number = parameters.get("step")
        return Request(
            sequence=request.correlation_id(),
            # A row without the batch axis, which is 1 in every request of a sequence.
            observation=[
                _input(request, port.name).reshape(port.shape) for port in self._observation_ports
            ],
            start=bool(flags & backend.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            end=bool(flags & backend.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
            number=number if isinstance(number, int) else None,
            reset=bool(parameters.get("reset", False)),
        )

    def _answer(self, result: list[np.ndarray] | ServingError) -> Any:
        if isinstance(result, ServingError):
            return _refusal(result)
        return backend.InferenceResponse(
            [
                _output(port.name, row(value))
                for port, value in zip(self._output_ports, result, strict=True)
            ]
        )

    def _answer_stateless(self, result: dict[str, np.ndarray] | ServingError) -> Any:
        if isinstance(result, ServingError):
            return _refusal(result)
        return backend.InferenceResponse([_output(name, value) for name, value in result.items()])


class _Metrics:
    """What Triton's own metrics do not say, beside them at the same address."""

    def __init__(self, model: str) -> None:
        labels = {"model": model}
        self._families = [
            backend.MetricFamily(
                name="nnx_ppo_sequences",
                description="Sequences whose carry is kept",
                kind=backend.MetricFamily.GAUGE,
            ),
            backend.MetricFamily(
                name="nnx_ppo_refused_requests",
                description="Requests of sequences that got an error",
                kind=backend.MetricFamily.GAUGE,
            ),
        ]
        self._sequences, self._refused = [family.Metric(labels=labels) for family in self._families]

    def update(self, sequences: Sequences) -> None:
        self._sequences.set(len(sequences))
        self._refused.set(sequences.refused)


def _check_actions(policy: Policy) -> None:
    """Replays the bundle's golden trajectory.

    Raises:
        ServingError: if the policy acts otherwise here than where it was exported.
    """
    report = self_test(policy)
    if not report.passed:
        worst = next(port for port in report.ports if not port.passed)
        raise ServingError(
            f"{policy.bundle.path}: the golden trajectory gives other values on this machine: "
            f"{worst.name} is off by {worst.max_abs_error:.1e} at step {worst.worst_step}; see "
            "nnx-ppo selftest"
        )


def _check_exchange() -> None:
    """Checks that arrays get through to the server and back as they are.

    Raises:
        ServingError: if they do not: every action would be wrong.
    """
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    taken = np.from_dlpack(_output("probe", given))
    if not np.array_equal(taken, given):
        raise ServingError(
            f"this server's Python backend changes arrays of NumPy {np.__version__}: {given} "
            f"became {taken}; use another version of the server or of NumPy"
        )


# Not `as_numpy` and `backend.Tensor(...)`: they ask NumPy for the sizes of things where NumPy 1 had
# them. With NumPy 2, servers up to 2.51 at least give each element the first one's value, and send
# empty tensors. What DLPack says does not depend on that.


def _input(request: Any, name: str) -> np.ndarray:
    return np.from_dlpack(backend.get_input_tensor_by_name(request, name))


_no_destructor = ctypes.pythonapi.PyCapsule_SetDestructor
_no_destructor.argtypes = [ctypes.py_object, ctypes.c_void_p]


def _output(name: str, value: np.ndarray) -> Any:
    capsule: Any = np.ascontiguousarray(value).__dlpack__()
    # The server takes the memory over but marks the capsule in a way that NumPy does not know, so
    # that NumPy would print an error each time it comes to free what is not its own any more.
    _no_destructor(ctypes.py_object(capsule), None)
    return backend.Tensor.from_dlpack(name, capsule)


def _refusal(error: ServingError) -> Any:
    code = backend.TritonError.INVALID_ARG
    if isinstance(error, SequenceLimitError):
        code = backend.TritonError.UNAVAILABLE
    elif isinstance(error, StepError):
        code = backend.TritonError.INTERNAL
    return backend.InferenceResponse([], error=backend.TritonError(to_message(error), code))
