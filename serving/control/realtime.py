"""What a control loop asks of the operating system and of Python, for the time of a run.

Each setting is tried, undone after the run, and reported in plain words: most of them need rights
that a process seldom has, and a loop without them still works, with more jitter.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from serving.errors import LoopError

_MCL_CURRENT, _MCL_FUTURE = 1, 2


@dataclasses.dataclass(frozen=True)
class RealTime:
    """Settings of a run. What is not asked for is left alone."""

    priority: int | None = None
    """Priority from 1 to 98 under SCHED_FIFO for the control thread; the watchdog gets one more.
    Above 50 it goes before most of the kernel's own interrupt threads."""
    cpus: tuple[int, ...] | None = None
    """Processors on which the control thread may run; one that was isolated for it is best."""
    lock_memory: bool = False
    """Keep all memory of the process in RAM, what it takes later included."""
    freeze_gc: bool = False
    """Collect garbage once and not again during the run. Reference counting goes on; only objects
    that refer to each other in a circle stay."""
    require: bool = False
    """Refuse to run if a setting cannot be had."""

    def __post_init__(self) -> None:
        """Refuses values that no system takes.

        Raises:
            LoopError: naming the field.
        """
        if self.priority is not None and not 1 <= self.priority <= 98:
            raise LoopError(f"priority is {self.priority}, expected 1 to 98, or None")
        if self.cpus is not None and not self.cpus:
            raise LoopError("cpus is empty, expected the numbers of processors, or None")


@contextlib.contextmanager
def real_time(settings: RealTime | None) -> Iterator[list[str]]:
    """Applies settings to the calling thread and its process, and undoes them at the end.

    Yields:
        A line for each setting: what was set, or why it was not.

    Raises:
        LoopError: if a setting is required and cannot be had; nothing is changed then.
    """
    lines: list[str] = []
    if settings is None:
        yield lines
        return
    with contextlib.ExitStack() as undo:
        for what, apply in _chosen(settings).items():
            try:
                lines.append(f"{what}: {apply(undo)}")
            except (OSError, AttributeError, ValueError, OverflowError) as error:
                reason = f"{what}: not set: {_reason(error)}"
                if settings.require:
                    raise LoopError(f"{reason}; it is required") from error
                lines.append(reason)
        yield lines


def leave_real_time() -> None:
    """Gives the calling thread the ordinary scheduler: what it does may wait."""
    # A thread that is ordinary already, and a system without schedulers, both may refuse.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def raise_priority() -> None:
    """Puts the calling thread one above the control thread that started it, if real-time."""
    with contextlib.suppress(OSError, AttributeError):
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        if policy == os.SCHED_FIFO:
            above = os.sched_getparam(0).sched_priority + 1
            os.sched_setscheduler(0, policy, os.sched_param(above))


def _chosen(settings: RealTime) -> dict[str, Callable[[contextlib.ExitStack], str]]:
    """What was asked for; last what would slow the others down."""
    chosen: dict[str, Callable[[contextlib.ExitStack], str]] = {}
    if settings.freeze_gc:
        chosen["garbage collector"] = _freeze_gc
    if settings.lock_memory:
        chosen["memory lock"] = _lock_memory
    if (cpus := settings.cpus) is not None:
        chosen["processors"] = lambda undo: _pin(cpus, undo)
    if (priority := settings.priority) is not None:
        chosen["scheduler"] = lambda undo: _schedule(priority, undo)
    return chosen


def _freeze_gc(undo: contextlib.ExitStack) -> str:
    was_enabled, were_frozen = gc.isenabled(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.disable()

    def restore() -> None:
        if not were_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()

    undo.callback(restore)
    return f"off, {gc.get_freeze_count()} objects set aside"


def _lock_memory(undo: contextlib.ExitStack) -> str:
    if sys.platform != "linux":
        raise ValueError(f"not known how on {sys.platform}")
    if _locked_kb():
        return "left as it is: this process has locked memory already"
    library = ctypes.CDLL(None, use_errno=True)
    if library.mlockall(_MCL_CURRENT | _MCL_FUTURE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    undo.callback(library.munlockall)
    return f"{_locked_kb() // 1024} MB, and what is taken later"


def _locked_kb() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").split("\n"):
        if line.startswith("VmLck:"):
            return int(line.split()[1])
    return 0


def _pin(cpus: tuple[int, ...], undo: contextlib.ExitStack) -> str:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    undo.callback(os.sched_setaffinity, 0, before)
    return ", ".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))


def _schedule(priority: int, undo: contextlib.ExitStack) -> str:
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    undo.callback(os.sched_setscheduler, 0, before, parameters)
    return f"SCHED_FIFO, priority {priority}"


def _reason(error: BaseException) -> str:
    if isinstance(error, PermissionError):
        return "not permitted; it needs root, CAP_SYS_NICE, or a limit (rtprio, memlock)"
    if isinstance(error, AttributeError):
        return f"not known how on {sys.platform}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
