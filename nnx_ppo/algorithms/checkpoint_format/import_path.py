"""Naming functions and classes by where they can be imported from."""

import importlib
import sys
from typing import Any

# Where functions are looked up under the name their users know, before the module that happens to
# define them: `flax.nnx:swish` and not a private module of JAX.
PUBLIC_MODULES = ("flax.nnx", "jax.nn", "jax.numpy", "jax.lax")


def import_path_of(thing: Any) -> str | None:
    """Returns ``"package.module:name"`` of a function or class, or None if it has no such path.

    Lambdas, closures, partial applications and what is defined inside functions have none.
    """
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if not isinstance(name, str):
        return None
    for public_name in PUBLIC_MODULES:
        module = sys.modules.get(public_name)
        if module is not None:
            for candidate in (name, *_names_in(module, thing)):
                if getattr(module, candidate, None) is thing:
                    return f"{public_name}:{candidate}"
    module_name = getattr(thing, "__module__", None)
    if not isinstance(module_name, str) or "<" in name:  # "<lambda>", "function.<locals>.name"
        return None
    module = sys.modules.get(module_name)
    if module is None or _attribute(module, name) is not thing:
        return None
    spec = getattr(module, "__spec__", None)
    if module_name == "__main__" and spec is not None:
        # Run by `python -m package.module`: importable under that name later on.
        module_name = spec.name
    return f"{module_name}:{name}"


def resolve_import_path(path: str) -> Any:
    """Imports what ``"package.module:name"`` names.

    Raises:
        ValueError: the path does not have that form.
        ImportError: the module cannot be imported.
        AttributeError: it has no such name.
    """
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        raise ValueError(f"{path!r} is not an import path; expected 'package.module:name'")
    thing = _attribute(importlib.import_module(module_name), name)
    if thing is None:
        raise AttributeError(f"module {module_name} has no {name}")
    return thing


def _attribute(module: Any, name: str) -> Any:
    thing = module
    for part in name.split("."):
        thing = getattr(thing, part, None)
    return thing


def _names_in(module: Any, thing: Any) -> list[str]:
    """Names under which a module has a function besides the one it calls itself (swish: silu)."""
    return [name for name, value in vars(module).items() if value is thing]
