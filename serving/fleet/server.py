"""Runs a Triton server as a child process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from serving.errors import ServerError
from serving.fleet.installation import Installation, find_installation
from serving.fleet.processes import (
    answers,
    choose_ports,
    is_running,
    kill_model_process,
    listen_at,
    model_processes_of,
    reason_in,
    terminate,
    tied_to_this_process,
)
from serving.fleet.repository import models_in

_KEPT_LINES = 200
_POLL_S = 0.05
_WATCH_S = 0.25
_SHARED_MEMORY = Path("/dev/shm")
_RESTRICTED = "model-repository,shared-memory,logging,trace"


@dataclasses.dataclass(frozen=True)
class Addresses:
    """Where a server is reached, each as host:port."""

    grpc: str
    """For gRPC."""
    http: str
    """For HTTP; health at `/v2/health/ready` and `/v2/health/live`."""
    metrics: str
    """For Prometheus, at `/metrics`."""


class TritonServer:
    """A Triton server that serves a model repository while the context lasts.

    Example:
        with TritonServer("repository/") as server:
            robot = RemotePolicy(server.addresses.grpc, model_name="policy")

    Args:
        repository: its directory.
        host: the address to listen on; by default this machine alone can reach it.
        grpc_port: 0 for a free one, here and below.
        http_port: for HTTP.
        metrics_port: for Prometheus.
        check_http: let HTTP requests through a gateway that refuses those which would stop the
            server, see `serving.fleet.http_check`, and all but health, metadata, statistics and
            inference; False to have them reach the server as they are.
        start_timeout_s: longest time until all models are ready.
        stop_timeout_s: how long requests that are being answered may take when the server is asked
            to stop, before it is killed.
        binary: path of a `tritonserver`; None for the one that is installed.
        on_line: called from a thread of its own with each line that the server writes.
        arguments: further arguments of the server.
    """

    def __init__(
        self,
        repository: str | Path,
        *,
        host: str = "127.0.0.1",
        grpc_port: int = 0,
        http_port: int = 0,
        metrics_port: int = 0,
        check_http: bool = True,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 5.0,
        binary: str | Path | None = None,
        on_line: Callable[[str], Any] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.repository = Path(os.path.abspath(repository))
        self.models = models_in(self.repository)
        if not self.models:
            raise ServerError(
                f"{self.repository}: holds no model; write one with: nnx-ppo triton BUNDLE "
                f"--repository {self.repository}"
            )
        self._installation = find_installation(binary)
        self._host = host
        self._given_ports = (grpc_port, http_port, metrics_port)
        self._check_http = check_http
        self._gateway: Any = None
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._on_line = on_line
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._directory: Path | None = None
        self._reader: threading.Thread | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._shared_memory = ""
        self._model_processes: list[int] = []
        self._addresses: Addresses | None = None

    @property
    def addresses(self) -> Addresses:
        """Where the server is reached.

        Raises:
            ServerError: if it has not been started.
        """
        if self._addresses is None:
            raise ServerError("the server has not been started")
        return self._addresses

    @property
    def pid(self) -> int:
        """The server's process.

        Raises:
            ServerError: if it has not been started.
        """
        if self._process is None:
            raise ServerError("the server has not been started")
        return self._process.pid

    def __enter__(self) -> TritonServer:
        """Starts the server, see `start`."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops the server, see `stop`."""
        self.stop()

    def start(self) -> None:
        """Starts the server and waits until all models are ready.

        On Linux, a server that is started from the main thread ends with this process, however that
        ends.

        Raises:
            ServerError: if a model fails to load, a port is taken, the server ends, or is not ready
                in time; what the server says of it is in the message.
        """
        if self._process is not None:
            raise ServerError("the server runs already")
        grpc, http_, metrics = choose_ports(self._host, self._given_ports)
        (inner,) = choose_ports("127.0.0.1", (0,)) if self._check_http else (http_,)
        self._lines.clear()
        self._shared_memory = f"nnx_ppo_{os.getpid()}_{secrets.token_hex(4)}_"
        self._directory = Path(tempfile.mkdtemp(prefix="nnx-ppo-triton-"))
        try:
            if self._check_http:
                # Brings asyncio, which a robot that imports `serving` has no use for.
                from serving.fleet.gateway import HttpGateway

                self._gateway = HttpGateway(listen_at(self._host, http_), inner)
                self._gateway.start()
            command = tied_to_this_process(self._command(self._directory, grpc, inner, metrics))
            self._process = subprocess.Popen(
                command,
                # Python would find modules in the working directory before its own.
                cwd=self._directory,
                env=_environment(self._installation),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # Ctrl-C in a terminal reaches us alone; we stop the server in good order.
                start_new_session=True,
            )
            # A program that ends without `stop` leaves no server behind.
            self._last_resort = weakref.finalize(self, terminate, self._process)
            self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
            self._reader.start()
            self._addresses = Addresses(
                *(f"{self._host}:{port}" for port in (grpc, http_, metrics))
            )
            self._wait_until_ready(inner)
            self._model_processes = model_processes_of(self._process.pid)
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                raise ServerError(f"{self._installation.binary}: cannot be run: {error}") from error
            raise

    def poll(self) -> int | None:
        """Returns None while the server runs, and how it ended afterwards."""
        return None if self._process is None else self._process.poll()

    def wait(self) -> None:
        """Waits until the server ends by itself, or one of its models does.

        Raises:
            ServerError: when that happens; both should run until `stop`.
        """
        while self.poll() is None:
            if dead := [pid for pid in self._model_processes if not is_running(pid)]:
                raise ServerError(
                    f"the process {dead[0]} of a model has ended and the server does not start "
                    f"another: {self._reason()}; all its sequences are lost, start the server anew"
                )
            time.sleep(_WATCH_S)
        raise ServerError(self._end_in_words())

    def stop(self) -> None:
        """Stops the server if it runs: it takes no new requests, and answers those it has.

        What it leaves in shared memory when it is killed is removed too.
        """
        process = self._process
        if process is not None:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(self._stop_timeout_s + 5.0)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()
            # A server that was killed leaves them behind, and they hold on to its output.
            for pid in self._model_processes:
                kill_model_process(pid)
            self._model_processes = []
            if self._reader is not None:
                self._reader.join(5.0)
            self._process = None
        self._addresses = None
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        if self._shared_memory:
            for file in _SHARED_MEMORY.glob(f"{self._shared_memory}*"):
                with contextlib.suppress(OSError):
                    file.unlink()

    def kill(self) -> None:
        """Ends the server's process at once, as a crash would; for tests of what follows."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """Returns the last lines that the server wrote."""
        return "\n".join(self._lines)

    def _command(self, directory: Path, grpc: int, http_: int, metrics: int) -> list[str]:
        return [
            str(self._installation.binary),
            f"--model-repository={self.repository}",
            *_backend_arguments(self._installation, directory),
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory}",
            # What the repository says is complete.
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            f"--exit-timeout-secs={max(1, round(self._stop_timeout_s))}",
            f"--grpc-address={self._host}",
            f"--grpc-port={grpc}",
            f"--http-address={'127.0.0.1' if self._check_http else self._host}",
            f"--http-port={http_}",
            f"--metrics-address={self._host}",
            f"--metrics-port={metrics}",
            # A second server must not share a port with this one without a word.
            "--reuse-grpc-port=0",
            "--reuse-http-port=0",
            # What changes the server or reaches into its memory is for nobody.
            f"--http-restricted-api={_RESTRICTED}:nnx-ppo-key={secrets.token_hex(16)}",
            f"--grpc-restricted-protocol={_RESTRICTED}:nnx-ppo-key={secrets.token_hex(16)}",
            "--log-info=true",
            *self._arguments,
        ]

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._lines.append(line.rstrip("\n"))
                if self._on_line is not None:
                    self._on_line(line.rstrip("\n"))

    def _wait_until_ready(self, port: int) -> None:
        deadline_s = time.monotonic() + self._start_timeout_s
        while True:
            if self.poll() is not None:
                raise ServerError(self._end_in_words())
            host = "127.0.0.1" if self._check_http else self._host
            if answers(host, port, "/v2/health/ready"):
                return
            if time.monotonic() > deadline_s:
                raise ServerError(
                    f"the server is not ready after {self._start_timeout_s:g} s; its last lines:\n"
                    f"{self._reason()}"
                )
            time.sleep(_POLL_S)

    def _end_in_words(self) -> str:
        status = self.poll()
        if self._reader is not None:
            self._reader.join(2.0)
        how = f"status {status}"
        if status is not None and status < 0:
            how = f"signal {signal.Signals(-status).name}"
        return f"the server has ended with {how}: {self._reason()}"

    def _reason(self) -> str:
        return reason_in(list(self._lines)) or "it has said nothing"


def _backend_arguments(installation: Installation, directory: Path) -> list[str]:
    """Puts the Python backend together: the stub has to lie beside the library."""
    if installation.python_backend is None or installation.stub is None:
        return []
    backend = directory / "backends" / "python"
    backend.mkdir(parents=True)
    for file in [*installation.python_backend.iterdir(), installation.stub]:
        if file.is_file():
            (backend / file.name).symlink_to(file)
    # This directory comes last where a model's Python looks for modules, so that it finds this
    # package also in a source tree that is not installed.
    (backend / "serving").symlink_to(Path(__file__).resolve().parents[1])
    return [f"--backend-directory={directory / 'backends'}"]


def _environment(installation: Installation) -> dict[str, str]:
    environment = dict(os.environ)
    # The stub looks for its Python by the name python3, and finds the packages of that one. It does
    # not look at PYTHONPATH.
    python = Path(sys.executable).parent
    environment["PATH"] = os.pathsep.join([str(python), environment.get("PATH", os.defpath)])
    if installation.libraries:
        libraries = [str(path) for path in installation.libraries]
        if before := environment.get("LD_LIBRARY_PATH"):
            libraries.append(before)
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    return environment
