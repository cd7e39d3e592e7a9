"""Remember which module an operation came from.

JAX keeps a stack of names with every equation of a jaxpr. Entering a named scope in each module's
`__call__` puts the module's path on that stack, where errors and reports can read it, and adds no
operation. Only the private copy that is traced knows its paths, and announces them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
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
        try:
            with jax.named_scope(_MARK + path):
                return bound(*args, **kwargs)
        except Exception as error:
            # The innermost module is asked first.
            if not hasattr(error, _PATH_ATTRIBUTE):
                setattr(error, _PATH_ATTRIBUTE, path)
            raise

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


def module_path_of_error(error: Exception) -> str:
    """Return the path of the innermost module whose call raised `error`, else `network`."""
    return getattr(error, _PATH_ATTRIBUTE, ROOT)


def source_line_of_error(error: Exception) -> str:
    """Return `file:line (function)` of the user's innermost frame that `error` came through."""
    place = "an unknown line"
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_users(frame.filename):
            place = f"{frame.filename}:{frame.lineno} ({frame.name})"
    return place


def line_that_called() -> str:
    """Return `file:line (function)` of the user's innermost frame that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return "an unknown line"


def has_user_line(recorded: Any) -> bool:
    """Return whether a JAX traceback has a frame outside the libraries."""
    return _user_frame(recorded) is not None


def _user_frame(recorded: Any) -> Any:
    for frame in recorded.frames if recorded is not None else ():
        if _is_users(frame.file_name):
            return frame
    return None


def _is_users(file_name: str) -> bool:
    path = file_name.replace("\\", "/")
    ours = any(path == own for own in _OWN_FILES)
    return not ours and not any(part in path for part in _LIBRARY_PARTS)


_LIBRARY_PARTS = (
    *("/jax/_src/", "/jax/", "/flax/", "/jaxtyping/", "/beartype/"),
    *("<string>", "<@beartype", "/site-packages/numpy/", "/contextlib.py"),
)
_OWN_FILES = {
    str(Path(__file__).with_name(name)).replace("\\", "/")
    for name in ("module_scopes.py", "python_state.py", "trace.py", "trace_failures.py")
}
