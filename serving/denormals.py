"""Subnormal numbers flushed to zero, for a stretch of code on one thread.

A leaky state that nobody excites decays into subnormal numbers, on which some processors compute a
hundred times slower: the policy of a robot at rest would miss its deadlines. onnxruntime's own
option acts on the thread that creates the first session only and is never undone, so a control loop
sets the mode itself, around its run.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

# Word of C's fenv_t that holds the control register, and the bits that flush, for both C libraries
# of Linux. x86-64: MXCSR, after the 28 bytes of the x87 unit, with flush-to-zero and
# denormals-are-zero; AArch64: FPCR, which comes before FPSR, with FZ, which flushes inputs too.
_CONTROL = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}


class _Environment(ctypes.Structure):
    # Larger than any of the two, so that no call can write beyond it.
    _fields_ = (("words", ctypes.c_uint32 * 32),)


@contextlib.contextmanager
def flush_denormals() -> Iterator[bool]:
    """Flushes subnormal numbers to zero on this thread and puts the former mode back at the end.

    Threads started inside inherit the mode; others are not affected.

    Yields:
        Whether they are flushed: False where this machine's way to say so is not known here.
    """
    control = _CONTROL.get(platform.machine()) if sys.platform == "linux" else None
    if control is None:
        yield False
        return
    library = _library_with_fenv()
    if library is None:
        yield False
        return
    word, bits = control
    before, changed = _Environment(), _Environment()
    library.fegetenv(ctypes.byref(before))
    ctypes.pointer(changed)[0] = before
    changed.words[word] |= bits
    library.fesetenv(ctypes.byref(changed))
    try:
        yield bool(np.float32(1e-38) * np.float32(0.1) == 0.0)
    finally:
        library.fesetenv(ctypes.byref(before))


def _library_with_fenv() -> Any:
    """Returns the library with the C functions (this process, or glibc's mathematical one) or None.

    An interpreter that needs no mathematical functions itself, since it is linked statically, has
    not loaded that one.
    """
    for name in (None, "libm.so.6"):
        # OSError: not glibc, where all functions are in one library.
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(name)
            if hasattr(library, "fegetenv") and hasattr(library, "fesetenv"):
                return library
    return None
