"""Steps a bundle's C, compiled with the system's compiler on first use.

A bundle's C is a program that is run: load only bundles whose origin is known. Nothing is compiled
or run before a session is asked for by `runtime="c"`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving.bundle import Bundle
from serving.errors import BundleError
from serving.manifest import Manifest
from serving.runtimes.base import (
    BoundStep,
    Runtime,
    Step,
    Tensor,
    check_signature,
    input_ports,
    output_ports,
)
from serving.runtimes.c_build import build, find_compiler

_MAIN = "nnx_ppo_rows.c"
_OUTPUT_ROLES = ("action", "next carry", "extra output")

# Subnormal numbers are flushed for the time of a call, as the other runtimes do; the mode is the
# thread's, which gets it back.
_FLUSH = """
#if defined(__SSE2__)
#include <xmmintrin.h>
static unsigned int flush(void)
{
    unsigned int before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);
    return before;
}
#define RESTORE(before) _mm_setcsr((unsigned int)(before))
#elif defined(__aarch64__)
static unsigned long flush(void)
{
    unsigned long before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (1ul << 24)));
    return before;
}
#define RESTORE(before) __asm__ volatile("msr fpcr, %0" : : "r"(before))
#else
static int flush(void) { return 0; }
#define RESTORE(before) (void)(before)
#endif
"""


class _Call(ctypes.Structure):
    # The same as `struct call` of the source.
    _fields_ = (
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("rows", ctypes.c_size_t),
    )


class _Port(ctypes.Structure):
    # The same as `policy_port` of the bundle's header.
    _fields_ = tuple((name, ctypes.c_char_p) for name in ("name", "role", "dtype", "shape"))


class CStep(BoundStep):
    """Runs the network for each row on the calling thread; the GIL is released meanwhile."""

    def __init__(self, manifest: Manifest, batch_size: int, function: Any) -> None:
        self._function = function
        self._kept: list[Any] = []
        super().__init__(manifest, batch_size)

    def _bound(self) -> Callable[[], object]:
        inputs, outputs = _pointers(self._inputs()), _pointers(self._outputs())
        call = _Call(inputs, outputs, len(self.reset))
        self._kept += [inputs, outputs, call]
        return functools.partial(self._function, ctypes.c_void_p(ctypes.addressof(call)))


class ArtefactRuntime(Runtime):
    """The compiled policy, shared by all sessions.

    Args:
        bundle: the bundle that has the artefact.
        artefact: its name there.
        compiler: command of the C compiler; default: `CC` of the environment, else cc, gcc or
            clang.
    """

    options = ("compiler",)

    def __init__(self, bundle: Bundle, artefact: str, *, compiler: str | None = None) -> None:
        super().__init__(bundle, artefact)
        command = find_compiler(compiler)
        # The checked bytes and not the files: what was replaced since then is never compiled.
        sources = {
            file.path.rpartition("/")[2]: bundle.artefact_bytes(artefact, file.path)
            for file in bundle.artefact(artefact).files
        }
        sources[_MAIN] = _source(self.manifest, self.file.name).encode()
        try:
            library, self._function = _load(build(command, sources, _MAIN))
        except (OSError, AttributeError):
            # What lies in the cache is damaged: made anew, it is whole.
            library_file = build(command, sources, _MAIN, anew=True)
            try:
                library, self._function = _load(library_file)
            except (OSError, AttributeError) as error:
                raise BundleError(
                    self.file,
                    f"{library_file}, just made of it, cannot be loaded: {error}; if programs may "
                    "not be run from there, name another directory in XDG_CACHE_HOME",
                ) from error
        self._function.restype = None
        inputs, outputs = _described(library)
        check_signature(self.file, self.manifest, inputs, outputs)

    def _make_step(self, batch_size: int) -> Step:
        return CStep(self.manifest, batch_size, self._function)


def _load(library_file: Path) -> tuple[ctypes.CDLL, Any]:
    library = ctypes.CDLL(str(library_file))
    return library, library.nnx_ppo_rows


def _source(manifest: Manifest, entry: str) -> str:
    """Returns the source of the function that steps all rows of a session."""

    def bytes_of(port: Any) -> int:
        return int(np.prod(port.shape, dtype=np.int64)) * np.dtype(port.dtype).itemsize

    arguments = [
        f"(void *)(call->inputs[{index}] + row * {bytes_of(port)}u)"
        for index, port in enumerate(input_ports(manifest).values())
    ]
    arguments += [
        f"(void *)(call->outputs[{index}] + row * {bytes_of(port)}u)"
        for index, port in enumerate(output_ports(manifest).values())
    ]
    joined = ",\n            ".join(arguments)
    return f"""\
#include "{entry}"
{_FLUSH}
struct call {{
    char *const *inputs;
    char *const *outputs;
    size_t rows;
}};

void nnx_ppo_rows(const struct call *call)
{{
    size_t row;
    const unsigned long before = (unsigned long)flush();

    for (row = 0; row < call->rows; ++row) {{
        policy_network(
            {joined});
    }}
    RESTORE(before);
}}
"""


def _pointers(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _described(library: ctypes.CDLL) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns what the compiled policy says about its inputs and outputs."""
    count = ctypes.c_size_t.in_dll(library, "policy_port_count").value
    ports = (_Port * count).in_dll(library, "policy_ports")
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    for port in ports:
        shape = tuple(int(size) for size in port.shape.decode().split(",") if size)
        target = outputs if port.role.decode() in _OUTPUT_ROLES else inputs
        target[port.name.decode()] = Tensor((None, *shape), port.dtype.decode())
    return inputs, outputs
