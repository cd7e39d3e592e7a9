"""Remember which module an operation came from.

JAX keeps a stack of names with every equation of a jaxpr. Entering a named scope in each module's
`__call__` puts the module's path on that stack, where errors and reports can read it, and adds no
operation. Only the private copy that is traced knows its paths, and announces them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax
from flax import nnx
from jax.extend import core as jcore

_MARK = "@"
_PATH_ATTRIBUTE = "_export_module_path"
ROOT = "network"


_patching = threading.RLock()


def note_module_paths(network: nnx.Module) -> None:
    """Write its path on every callable module in `network`, changing `network` in place.

    Args:
        network: A private copy.
    """
    for path, module in list(nnx.iter_modules(network)):
        if callable(module):
            setattr(module, _PATH_ATTRIBUTE, ".".join(str(part) for part in path) or ROOT)


@contextlib.contextmanager
def module_scopes(network: nnx.Module) -> Iterator[None]:
    """Make calls of modules that know their path announce it, until the context is left.

    The classes of the modules are changed for that time, not the modules: a network may ask what
    class a module has. Other instances behave as ever, also in other threads.

    Args:
        network: Its modules' classes are changed; the paths come from `note_module_paths`.
    """
    classes = {type(module) for _, module in nnx.iter_modules(network) if callable(module)}
    with _patching, contextlib.ExitStack() as restore:
        for cls in classes:
            restore.enter_context(_scoped_calls(cls))
        yield


@contextlib.contextmanager
def _scoped_calls(cls: Any) -> Iterator[None]:
    inherited = "__call__" not in vars(cls)
    original = cls.__call__ if inherited else vars(cls)["__call__"]

    @functools.wraps(cls.__call__)
    def scoped_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = original.__get__(self, type(self))
        path = getattr(self, _PATH_ATTRIBUTE, None)
        if path is None:
            return bound(*args, **kwargs)
        with jax.named_scope(_MARK + path):
            return bound(*args, **kwargs)

    cls.__call__ = scoped_call
    try:
        yield
    finally:
        if inherited:
            del cls.__call__
        else:
            cls.__call__ = original


def module_path_of(equation: jcore.JaxprEqn) -> str:
    """Return the path of the innermost module that produced `equation`, else `network`."""
    for name in reversed(str(equation.source_info.name_stack).split("/")):
        if name.startswith(_MARK):
            return name[len(_MARK) :]
    return ROOT


def source_line_of(equation: jcore.JaxprEqn) -> str:
    """Return `file:line (function)` of the user's frame that produced `equation`."""
    frame = _user_frame(equation.source_info.traceback)
    if frame is None:
        return "an unknown line"
    return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"


def has_user_line(traceback: Any) -> bool:
    """Return whether a JAX traceback has a frame outside the libraries."""
    return _user_frame(traceback) is not None


def _user_frame(traceback: Any) -> Any:
    for frame in traceback.frames if traceback is not None else ():
        path = frame.file_name.replace("\\", "/")
        if path != __file__ and not any(part in path for part in _LIBRARY_PARTS):
            return frame
    return None


_LIBRARY_PARTS = ("/jax/_src/", "/jax/", "/flax/", "/jaxtyping/", "/beartype/", "<string>")
