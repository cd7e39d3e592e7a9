"""What is asked of the system about a server: ports, processes, why it has ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from serving.errors import ServerError

_ERROR = re.compile(r"[EF][0-9]{4} ")
"""How the server marks a line about an error: a letter, and the date."""


def reason_in(lines: list[str]) -> str:
    """Returns from a server's lines those that tell why it does not serve.

    Why models failed to load if that is it, else other errors, else its last lines.
    """
    errors = [line.partition("] ")[2].strip(' "') for line in lines if _ERROR.match(line)]
    errors += [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    failed = [error for error in errors if "failed to load" in error and " version " in error]
    chosen = failed or [error for error in errors if "CudaDriverHelper" not in error] or lines[-5:]
    # What follows is the traceback within Python's import machinery.
    cut = [error.partition("\\n\\nAt:")[0].removesuffix("\\n") for error in chosen]
    return "; ".join(dict.fromkeys(" ".join(error.split()) for error in cut[:5]))


def choose_ports(host: str, given: tuple[int, ...]) -> list[int]:
    """Returns ports that are free at an address.

    Args:
        host: the address.
        given: for each port the one wanted, 0 for any.

    Raises:
        ServerError: if one that is wanted is taken, or the address is not one of this machine.
    """
    sockets: list[socket.socket] = []
    try:
        for port in given:
            if type(port) is not int or not 0 <= port < 65536:
                raise ServerError(f"port {port!r}: expected an integer from 0 to 65535")
            sockets.append(listen_at(host, port))
        return [bound.getsockname()[1] for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()


def model_processes_of(server: int) -> list[int]:
    """Returns the processes that run Python models; the server says nothing when one dies."""
    found = []
    for task in Path(f"/proc/{server}/task").glob("*/children"):
        for child in task.read_text().split():
            if _is_model_process(int(child)):
                found.append(int(child))
    return found


def kill_model_process(pid: int) -> None:
    """Ends a process that runs a Python model, unless its number has gone to another by now."""
    if _is_model_process(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _is_model_process(pid: int) -> bool:
    try:
        return "triton_python_backend_stub" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


# Asks the system for SIGTERM when the parent ends, and becomes the program. The parent may have
# ended before that.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied_to_this_process(command: list[str]) -> list[str]:
    """Returns a command whose process gets SIGTERM when this one ends, even by SIGKILL.

    The system goes by the thread that starts it, so on other threads than the main one, and on
    other systems than Linux, the command is returned as it is.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not (sys.platform.startswith("linux") and on_main_thread):
        return command
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]


def terminate(process: subprocess.Popen[str]) -> None:
    """Asks a process to end, if it runs."""
    if process.poll() is None:
        process.terminate()


def listen_at(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to an address.

    Raises:
        ServerError: if it is taken.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ServerError(
            f"{host}:{port} cannot be listened at: {error.strerror or error}; choose another port "
            "or address"
        ) from error
    return bound


def answers(host: str, port: int, path: str) -> bool:
    """Whether a GET request is answered with status 200."""
    import http.client

    host = "127.0.0.1" if host in ("", "0.0.0.0") else host
    connection = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
