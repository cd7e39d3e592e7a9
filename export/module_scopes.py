"""Remember which module an operation came from.

JAX keeps a stack of names with every equation of a jaxpr. Entering a named scope in each module's
`__call__` puts the module's path on that stack, where errors and reports can read it, and adds no
operation. Only the private copy that is traced gets the scopes.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from flax import nnx
from jax.extend import core as jcore

_MARK = "@"
_PATH_ATTRIBUTE = "_export_module_path"
ROOT = "network"


@functools.cache
def _scoped_class(cls: type) -> type:
    """Return a subclass of `cls` whose calls run under the path stored on the instance."""

    @functools.wraps(cls.__call__)
    def scoped_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(_MARK + getattr(self, _PATH_ATTRIBUTE)):
            return cls.__call__(self, *args, **kwargs)

    return type(
        cls.__name__,
        (cls,),
        {
            "__call__": scoped_call,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        },
    )


def add_module_scopes(network: nnx.Module) -> None:
    """Make every callable module in `network` announce its path, changing `network` in place.

    Args:
        network: A private copy; its modules change class to a subclass of the same name.
    """
    for path, module in list(nnx.iter_modules(network)):
        if callable(module):
            setattr(module, _PATH_ATTRIBUTE, ".".join(str(part) for part in path) or ROOT)
            object.__setattr__(module, "__class__", _scoped_class(type(module)))


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
