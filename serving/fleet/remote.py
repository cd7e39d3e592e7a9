"""A policy on a server, with the interface of a session."""

from __future__ import annotations

import json
import secrets
import threading
from types import TracebackType
from typing import Any, Literal

import numpy as np

from serving import tree
from serving.errors import (
    CarryError,
    FleetError,
    SequenceLostError,
    ServerError,
    ServingError,
)
from serving.fleet.exchange import connect, initial_carry, row, taken
from serving.fleet.model_config import (
    INITIAL_CARRY_PARAMETER,
    MANIFEST_PARAMETER,
    SETTINGS_PARAMETER,
    START_INPUT,
)
from serving.fleet.protocol import Inference, RefusedError, UnansweredError
from serving.fleet.settings import FleetSettings
from serving.fleet.wording import from_message
from serving.manifest import Manifest, Metadata
from serving.manifest_json import parse_manifest
from serving.observation import ObservationWriter
from serving.tree_access import copier

_CONNECT_TIMEOUT_S = 10.0


class RemotePolicy:
    """One robot's side of a policy that a server steps.

    A sequence begins with the first step and after each `reset`, under a number of its own. The
    server keeps its carry (or, of a stateless model, this object). A step gives the action for
    exactly that carry, or raises: when an answer is missing or the server does not know the
    sequence any more, SequenceLostError, in this and every further step until `reset`. No request
    is ever sent twice.

    May be handed from thread to thread; calls from two at once wait for each other.

    Example:
        with RemotePolicy("127.0.0.1:8001", model_name="policy") as robot:
            action = robot.step(observation)

    Args:
        url: host:port of the server.
        model_name: the model's name in the server's repository.
        protocol: "grpc", which needs the extra `triton`, or "http", which needs no package.
        timeout_s: longest wait for an action.
        check_finite: refuse observations with NaN or infinities.

    Raises:
        ServerError: if the server cannot be reached, has no such model, or the model was not
            written by `nnx-ppo triton`; or if tritonclient is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        model_name: str = "policy",
        protocol: Literal["grpc", "http"] = "grpc",
        timeout_s: float = 1.0,
        check_finite: bool = True,
    ) -> None:
        if not (isinstance(timeout_s, int | float) and 0.0 < timeout_s < 1e6):
            raise FleetError(f"timeout_s is {timeout_s!r}, expected a positive number of seconds")
        self.url = url
        self.model_name = model_name
        self.timeout_s = float(timeout_s)
        self.batch_size = None
        """As of a session for one robot: observations and actions have no batch axis."""
        self._connection = connect(url, protocol)
        self._lock = threading.Lock()
        try:
            parameters = self._parameters()
        except BaseException:
            self._connection.close()
            raise
        self.manifest: Manifest = parse_manifest(
            parameters[MANIFEST_PARAMETER].encode(), f"{url}/{model_name}"
        )
        """The bundle's, as the server has it."""
        self.settings = FleetSettings.from_json(json.loads(parameters[SETTINGS_PARAMETER]))
        """How the policy is served."""
        manifest = self.manifest
        self._observation = [np.zeros(p.shape, p.dtype) for p in manifest.observation_ports]
        self._writer = ObservationWriter(
            manifest, self._observation, None, check_finite=check_finite
        )
        self._action = [np.zeros(p.shape, p.dtype) for p in manifest.action_ports]
        by_name = {p.name: a for p, a in zip(manifest.action_ports, self._action, strict=True)}
        leaves = [by_name[str(leaf.port)] for leaf in tree.leaves(manifest.action)]
        self._copied_action = copier(manifest.action, leaves)
        self._keeps = [p.name for p in manifest.carry_ports if p.reset == "keep"]
        self._initial = initial_carry(manifest, parameters.get(INITIAL_CARRY_PARAMETER, ""))
        self._carry = dict(self._initial)
        self._sequence: int | None = None
        self._sequence_steps = 0
        self._reset_next = False
        self._lost = ""
        self._steps = 0

    @property
    def metadata(self) -> Metadata:
        """Joint names, action scale and what else the robot has to know."""
        return self.manifest.metadata

    @property
    def control_rate_hz(self) -> float | None:
        """The rate at which the policy was trained to act, in Hz, if the bundle says so."""
        return self.manifest.control_rate_hz

    @property
    def steps(self) -> int:
        """Number of steps that have succeeded since this object was made."""
        return self._steps

    @property
    def sequence_id(self) -> int | None:
        """The number by which the server knows the sequence; None when there is none."""
        return self._sequence

    def step(self, observation: Any, *, check_outputs: bool = True) -> Any:
        """Has the server compute the action for an observation and advance the carry.

        Blocks until the answer is here, `timeout_s` at most. Allocates.

        Args:
            observation: the tree that was exported, as `Session.step` takes it.
            check_outputs: for the control loop; servers always refuse a step whose outputs are not
                finite.

        Returns:
            The action in the exported tree, as new arrays.

        Raises:
            ObservationError: if the observation does not fit; the carry is as it was.
            ActionError: if the step gave values that are not finite; likewise.
            StepError: if the step failed on the server; likewise.
            SequenceLimitError: if the server keeps as many sequences as it may.
            SequenceLostError: if the server lost the carry, or nobody knows whether it has
                advanced; from then on until `reset`.
            ServerError: if a sequence cannot begin because the server does not answer. The next
                step tries again.
        """
        with self._lock:
            self._refuse_if_lost()
            self._writer.write(observation)
            if self.settings.mode == "stateless":
                return self._stateless_step()
            return self._sequence_step()

    def reset(self) -> None:
        """Begins a new episode: the next step starts from the carry of a fresh environment.

        Carry that the network itself keeps over resets stays, unless the sequence is lost. The old
        sequence is ended on the server, if it can be reached.

        Raises:
            FleetError: if carry has to be kept and the model is one that cannot do so.
        """
        with self._lock:
            if self.settings.mode == "stateless":
                kept = {name: self._carry[name] for name in self._keeps}
                self._carry = {**self._initial, **({} if self._lost else kept)}
            elif self._sequence is not None and not self._lost and self._keeps:
                if self.settings.mode == "implicit_state":
                    raise FleetError(
                        f"{self._keeps[0]} is kept over a reset, which this model cannot do: the "
                        "server's onnxruntime backend starts all carry afresh; serve the policy "
                        "with the python backend, or make a new RemotePolicy"
                    )
                self._reset_next = True
                return
            else:
                self._end()
            self._lost = ""

    def close(self) -> None:
        """Ends the sequence on the server and closes the connection. Nothing is raised."""
        with self._lock:
            self._end()
            self._connection.close()

    def __enter__(self) -> RemotePolicy:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    @property
    def carry(self) -> dict[str, np.ndarray]:
        """The carry by port name, as copies, of a stateless model.

        Setting it copies the given arrays in.

        Raises:
            CarryError: if the server keeps it; or if a name, shape or dtype is another.
        """
        self._refuse_carry_of_the_server()
        with self._lock:
            return {name: value.copy() for name, value in self._carry.items()}

    @carry.setter
    def carry(self, carry: dict[str, np.ndarray]) -> None:
        self._refuse_carry_of_the_server()
        if sorted(carry) != sorted(self._initial):
            raise CarryError(f"carry: got {sorted(carry)}, expected {sorted(self._initial)}")
        arrays = {name: np.array(value) for name, value in carry.items()}
        for name, initial in self._initial.items():
            if arrays[name].shape != initial.shape or arrays[name].dtype != initial.dtype:
                raise CarryError(
                    f"carry: {name} is {arrays[name].dtype}{list(arrays[name].shape)}, expected "
                    f"{initial.dtype}{list(initial.shape)}"
                )
        with self._lock:
            self._carry = arrays

    def _refuse_carry_of_the_server(self) -> None:
        if self.settings.mode != "stateless":
            raise CarryError("the server keeps the carry of this model; nobody else can see it")

    def _refuse_if_lost(self) -> None:
        if self._lost:
            raise SequenceLostError(
                f"{self._lost}; the sequence is lost since then. Bring the robot to rest if it has "
                "to be, then call reset() to begin a new one"
            )

    def _sequence_step(self) -> Any:
        starts = self._sequence is None
        if starts:
            # Never a number that was used before: another server may still know it.
            self._sequence = secrets.randbits(63) | 1
            self._sequence_steps = 0
        parameters: dict[str, str | int | bool] = {
            "sequence_id": int(self._sequence or 0),
            "sequence_start": starts,
            "sequence_end": False,
            "step": self._sequence_steps,
        }
        if self._reset_next:
            parameters["reset"] = True
        try:
            self._take_action(self._ask(self._inputs(), parameters, self._action_names()))
        except ServingError as error:
            self._after_failure(error, starts)
            raise
        except BaseException:  # an interrupt while waiting: the server may have stepped
            self._connection.renew()
            self._lose("interrupted while waiting for an action")
            raise
        self._sequence_steps += 1
        self._steps += 1
        self._reset_next = False
        return self._copied_action()

    def _after_failure(self, error: ServingError, starts: bool) -> None:
        """Decides what is known about the sequence after a step that gave no action."""
        if starts:
            # Nothing was built upon it: the next step begins another one.
            self._sequence = None
        elif isinstance(error, SequenceLostError | ServerError):
            self._lose(str(error))
        # Otherwise the server said that the carry is as it was.

    def _stateless_step(self) -> Any:
        ports = self.manifest.carry_ports
        carry = [(port.name, row(self._carry[port.name])) for port in ports]
        start = [(START_INPUT, np.zeros((1, 1), np.bool_))]
        names = [*self._action_names(), *(port.next_name for port in ports)]
        try:
            outputs = self._ask([*self._inputs(), *carry, *start], {}, names)
            after = {port.name: taken(outputs, port, port.next_name) for port in ports}
            self._take_action(outputs)
        except ServingError:
            raise
        except BaseException:  # an interrupt: the answer must not be taken for that of the next
            self._connection.renew()
            raise
        self._carry = after
        self._steps += 1
        return self._copied_action()

    def _ask(
        self,
        inputs: list[tuple[str, np.ndarray]],
        parameters: dict[str, str | int | bool],
        outputs: list[str],
    ) -> dict[str, np.ndarray]:
        """Sends one request.

        Raises:
            ServingError: of the kind that the server names; SequenceLostError if there is no answer
                in a sequence that goes on, ServerError if it was to begin.
        """
        request = Inference(self.model_name, inputs, outputs, parameters)
        try:
            answer = self._connection.infer(request, self.timeout_s)
        except RefusedError as error:
            named = from_message(str(error))
            raise named or ServerError(f"{self.url} refuses the request: {error}") from error
        except UnansweredError as error:
            self._connection.renew()
            if parameters.get("sequence_start", False) or not parameters:
                raise ServerError(f"{self.url} gives no answer: {error}") from error
            raise SequenceLostError(
                f"no answer from {self.url} in step {self._sequence_steps}, so nobody can say "
                f"whether the carry has advanced: {error}"
            ) from error
        if missing := [name for name in outputs if name not in answer]:
            raise ServerError(f"{self.url}: the answer lacks {missing}")
        return answer

    def _inputs(self) -> list[tuple[str, np.ndarray]]:
        ports = self.manifest.observation_ports
        return [
            (port.name, row(value)) for port, value in zip(ports, self._observation, strict=True)
        ]

    def _action_names(self) -> list[str]:
        return [port.name for port in self.manifest.action_ports]

    def _take_action(self, outputs: dict[str, np.ndarray]) -> None:
        """Copies the action out of an answer."""
        for target, port in zip(self._action, self.manifest.action_ports, strict=True):
            target[...] = taken(outputs, port, port.name)

    def _lose(self, why: str) -> None:
        self._lost = why
        self._sequence = None
        self._reset_next = False

    def _end(self) -> None:
        """Tells the server that the sequence has ended; what it answers does not matter."""
        if self._sequence is None or self._lost:
            self._sequence = None
            return
        parameters: dict[str, str | int | bool] = {
            "sequence_id": self._sequence,
            "sequence_start": False,
            "sequence_end": True,
        }
        self._sequence = None
        for value in self._observation:
            value[...] = 0
        request = Inference(self.model_name, self._inputs(), self._action_names(), parameters)
        try:
            self._connection.infer(request, min(self.timeout_s, 1.0))
        except (RefusedError, UnansweredError):
            # It is forgotten there after the idle time.
            self._connection.renew()

    def _parameters(self) -> dict[str, str]:
        try:
            parameters = self._connection.model_parameters(self.model_name, _CONNECT_TIMEOUT_S)
        except RefusedError as error:
            raise ServerError(f"{self.url} has no model {self.model_name!r}: {error}") from error
        except UnansweredError as error:
            raise ServerError(f"{self.url} gives no answer: {error}") from error
        if MANIFEST_PARAMETER not in parameters or SETTINGS_PARAMETER not in parameters:
            raise ServerError(
                f"{self.url}: the model {self.model_name!r} was not written by nnx-ppo triton, so "
                "it does not say what observations it takes"
            )
        return parameters
