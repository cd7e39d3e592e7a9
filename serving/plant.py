"""A simulated robot in a process of its own: `serve_plant` there, `RemotePlant` here.

The two run in lockstep: an action is sent by `apply`, the simulator takes one step, and the next
`read` waits for the observation that follows. When an episode ends the simulator resets itself, and
that observation begins the next episode.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsFloat

from serving import wire
from serving.errors import PlantError

PROTOCOL_VERSION = 1


@dataclasses.dataclass
class PlantSummary:
    """What a simulator did for one client."""

    steps: int = 0
    """Simulation steps."""
    returns: list[float] = dataclasses.field(default_factory=list)
    """Sum of rewards of each finished episode."""
    unfinished_return: float = 0.0
    """Sum of rewards of the episode in progress."""
    closed: bool = False
    """Whether the client said goodbye; False if its connection just ended."""

    def to_json(self) -> dict[str, Any]:
        """Returns the summary as JSON values."""
        return dataclasses.asdict(self)


class RemotePlant:
    """A simulator in another process, seen as the two callables of a control loop.

    Example:
        with RemotePlant("tcp://127.0.0.1:5555", on_episode=session.reset) as plant:
            ControlLoop(session, plant.read, plant.apply, rate_hz=100.0).run(duration_s=10.0)
            summary = plant.close()

    Args:
        address: "tcp://host:port" or "unix:///path".
        on_episode: called by `read` when an episode has begun since the last `read`, the first
            included.
        timeout_s: longest wait for an answer; a simulator may compile in its first step.
    """

    def __init__(
        self,
        address: str,
        *,
        on_episode: Callable[[], Any] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self.address = address
        self.reward = 0.0
        """Reward of the step that led to the last observation read."""
        self.episode_began = False
        """Whether the last observation read begins an episode."""
        self._on_episode = on_episode
        self._summary: dict[str, Any] | None = None
        self._observation: Any = None
        self._pending = False
        self._unannounced = False
        self._closed = False
        self._connection = _connect(address, timeout_s)
        try:
            self._request({"kind": "hello", "version": PROTOCOL_VERSION})
            self._expect("hello")
            self.reset()
        except BaseException:
            self._hang_up()
            raise

    def read(self) -> Any:
        """Waits for the observation after the last action or reset, and returns it.

        Without an action in between, the same observation is returned again.

        Raises:
            PlantError: if the simulator failed or the connection is broken.
        """
        if self._pending:
            self._receive()
        if self._unannounced:
            self._unannounced = False
            if self._on_episode is not None:
                self._on_episode()
        return self._observation

    def apply(self, action: Any) -> None:
        """Sends an action and returns at once, while the simulator steps.

        Raises:
            PlantError: if the simulator failed or the connection is broken.
        """
        if self._pending:
            # Nobody read what followed the last action; the answers must still be told apart.
            self._receive()
        self._request({"kind": "step", "action": action})
        self._pending = True

    def reset(self) -> None:
        """Begins a new episode; the next `read` waits for its first observation.

        Raises:
            PlantError: if the simulator failed or the connection is broken.
        """
        if self._pending:
            self._receive()
        self._request({"kind": "reset"})
        self._pending = True

    def close(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Ends the connection and returns the simulator's summary.

        Args:
            timeout_s: longest wait for an answer; None for that of the connection.

        Returns:
            `steps`, `returns` of the finished episodes, `unfinished_return`, `closed`. A second
            call returns the same.

        Raises:
            PlantError: if the simulator failed or the connection is broken; it is closed then too.
        """
        if self._summary is None:
            self._check_open()
            try:
                if timeout_s is not None:
                    self._connection.settimeout(timeout_s)
                if self._pending:
                    self._receive()
                self._request({"kind": "close"})
                self._summary = dict(self._expect("summary")["summary"])
            finally:
                self._hang_up()
        return self._summary

    def __enter__(self) -> RemotePlant:
        """Returns the plant itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the connection; after an error, or where it is lost, without waiting."""
        if error is None and not self._closed:
            self.close()
        self._hang_up()

    def _receive(self) -> None:
        message = self._expect("observation")
        self._pending = False
        self._observation = message["observation"]
        self.reward = float(message["reward"])
        self.episode_began = bool(message["began"])
        # Several actions may be sent between two reads; the beginning is news until then.
        self._unannounced |= self.episode_began

    def _request(self, message: dict[str, Any]) -> None:
        self._check_open()
        try:
            wire.send(self._connection, message)
        except BaseException:  # an interrupt too: a part of the message may have gone out
            self._hang_up()
            raise

    def _expect(self, kind: str) -> dict[str, Any]:
        self._check_open()
        try:
            return self._checked(wire.receive(self._connection), kind)
        except BaseException:  # an interrupt too: a part of the message may have been read
            self._hang_up()
            raise

    def _checked(self, message: dict[str, Any] | None, kind: str) -> dict[str, Any]:
        if message is None:
            raise PlantError(f"{self.address}: the simulator closed the connection")
        if message["kind"] == "error":
            raise PlantError(f"{self.address}: the simulator failed: {message.get('message')}")
        needed = {"observation": {"observation", "reward", "began"}, "summary": {"summary"}}
        if message["kind"] != kind or not needed.get(kind, set()) <= message.keys():
            raise PlantError(f"{self.address}: got {message['kind']!r}, expected {kind!r}")
        return message

    def _check_open(self) -> None:
        if self._closed:
            raise PlantError(f"{self.address}: the connection is closed; make a new RemotePlant")

    def _hang_up(self) -> None:
        # After a failure nobody knows which answer would come next, so the connection is over.
        self._closed = True
        self._connection.close()


def serve_plant(
    reset: Callable[[], Any],
    step: Callable[[Any], tuple[Any, SupportsFloat, Any]],
    *,
    address: str = "tcp://127.0.0.1:0",
    on_listening: Callable[[str], Any] | None = None,
    accept_timeout_s: float | None = None,
    allow_remote: bool = False,
) -> PlantSummary:
    """Serves one client from its first message to its goodbye, on the calling thread.

    Args:
        reset: begins an episode and returns its first observation, a tree of arrays and numbers.
        step: takes an action; returns observation, reward and whether the episode ended.
        address: "tcp://host:port", port 0 for a free one, or "unix:///path".
        on_listening: told the address with the real port once clients can connect.
        accept_timeout_s: longest wait for the client; None for no limit.
        allow_remote: allow an address that other machines can reach. Nothing is authenticated.

    Returns:
        What was done.

    Raises:
        PlantError: if the address cannot be used, no client came in time, or it sent nonsense.
        Exception: whatever `reset` or `step` raised, after the client was told.
    """
    listener, bound = _listen(address, allow_remote)
    try:
        listener.settimeout(accept_timeout_s)
        if on_listening is not None:
            on_listening(bound)
        try:
            connection, _ = listener.accept()
        except OSError as error:
            raise PlantError(f"{bound}: no client connected: {error}") from error
        with connection:
            connection.settimeout(None)
            _send_at_once(connection)
            return _serve_client(connection, reset, step)
    finally:
        listener.close()
        if bound.startswith("unix://"):
            Path(bound.removeprefix("unix://")).unlink(missing_ok=True)


def _serve_client(
    connection: socket.socket,
    reset: Callable[[], Any],
    step: Callable[[Any], tuple[Any, SupportsFloat, Any]],
) -> PlantSummary:
    summary = PlantSummary()
    try:
        while (message := wire.receive(connection)) is not None:
            kind = message["kind"]
            if kind == "hello":
                if message.get("version") != PROTOCOL_VERSION:
                    raise PlantError(f"protocol {message.get('version')}, not {PROTOCOL_VERSION}")
                wire.send(connection, {"kind": "hello", "version": PROTOCOL_VERSION})
            elif kind == "reset":
                summary.unfinished_return = 0.0
                _send_observation(connection, reset(), 0.0, True)
            elif kind == "step" and "action" in message:
                observation, reward, ended = step(message["action"])
                summary.steps += 1
                summary.unfinished_return += float(reward)
                if ended:
                    summary.returns.append(summary.unfinished_return)
                    summary.unfinished_return = 0.0
                    observation = reset()
                _send_observation(connection, observation, float(reward), bool(ended))
            elif kind == "close":
                summary.closed = True
                wire.send(connection, {"kind": "summary", "summary": summary.to_json()})
                return summary
            else:
                raise PlantError(f"unknown message {kind[:40]!r}")
    except Exception as error:
        _report_error(connection, error)
        raise
    return summary


def _send_observation(
    connection: socket.socket, observation: Any, reward: float, began: bool
) -> None:
    message = {"observation": observation, "reward": reward, "began": began}
    wire.send(connection, {"kind": "observation", **message})


def _report_error(connection: socket.socket, error: Exception) -> None:
    try:
        wire.send(connection, {"kind": "error", "message": f"{type(error).__name__}: {error}"})
    except PlantError as broken:
        # The client has gone too; the first error is the one to see.
        error.add_note(f"the client could not be told: {broken}")


def _connect(address: str, timeout_s: float) -> socket.socket:
    family, target = _parse(address)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(target)
        _send_at_once(connection)
    except OSError as error:
        connection.close()
        raise PlantError(f"{address}: cannot connect: {error}; is the simulator on?") from error
    return connection


def _listen(address: str, allow_remote: bool) -> tuple[socket.socket, str]:
    family, target = _parse(address)
    if isinstance(target, tuple) and not allow_remote and not _is_loopback(target[0]):
        raise PlantError(f"{address}: not loopback; pass allow_remote=True if that is meant")
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(target, tuple):
            # A port whose last connection has just been closed may be taken again.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise PlantError(f"{address}: cannot listen: {error}") from error
    if isinstance(target, tuple):
        return listener, f"tcp://{target[0]}:{listener.getsockname()[1]}"
    return listener, address


def _parse(address: str) -> tuple[socket.AddressFamily, tuple[str, int] | str]:
    if address.startswith("unix://") and len(address) > len("unix://"):
        return socket.AF_UNIX, os.fspath(address.removeprefix("unix://"))
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not host or not port.isdecimal() or int(port) > 65535:
        raise PlantError(f"address {address!r}: expected 'tcp://host:port' or 'unix:///path'")
    return socket.AF_INET, (host, int(port))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _send_at_once(connection: socket.socket) -> None:
    if connection.family == socket.AF_INET:
        # Small messages must not wait for others to be sent along with them.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
