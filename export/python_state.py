"""Notice a step that changes what a module keeps in plain Python: counters, lists, flags.

Such a change happens once, when the step is traced, and never again in an exported one. So a second
call is traced too, and if it computes something else, Python has kept something between the calls,
wherever that may be.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flax import nnx
from jax.extend import core as jcore

from export.errors import HiddenStateError
from export.module_scopes import line_that_called
from export.passes.rewrite import is_var
from export.plain_state import BOOKKEEPING, CONTAINERS, VALUES, attributes_of, is_plain_object


@contextlib.contextmanager
def noted_changes(network: nnx.Module) -> Iterator[list[str]]:
    """Yield a list that names, after the block, each plain attribute that the block changed.

    An attribute that the block adds does not count, since no next call finds it.

    Args:
        network: A private copy.
    """
    changes: list[str] = []
    modules = _modules(network)
    before = _snapshot(modules)
    with _noted_assignments(modules) as lines:
        yield changes
    after = _snapshot(_modules(network))
    for (path, name), value in before.items():
        if (path, name) in after and after[path, name] != value:
            line = lines.get((path, name)) or _line_of_call(modules[path])
            changes.append(
                f"module '{path or 'network'}' changes its attribute '{name}', at {line}"
            )


def refuse_changes_that_matter(
    changes: Sequence[str], first: jcore.ClosedJaxpr, second: jcore.ClosedJaxpr
) -> None:
    """Raise if a second call of the step computes something else than the first.

    A counter that nothing reads, or a list that collects what went by, does no harm.

    Args:
        changes: As from `noted_changes`; empty if what changed is none of a module's attributes.
        first: The step as the first call of a network does it.
        second: As the next call does it, with the same Variables, carry and observation.

    Raises:
        HiddenStateError: They differ; names module, attribute and line as far as they are known.
    """
    if meaning(first) == meaning(second):
        return
    what = "; ".join(changes) or (
        "something changes in Python that is no attribute of a module (a global, a value in a "
        "closure, NumPy's or Python's random numbers, the time)"
    )
    raise HiddenStateError(
        f"in a step {what}, and the next step depends on it: Python runs once, while the step is "
        "traced, so an exported step would not do it. Return the value in the carry "
        "(initialize_state, next_state), or do not change it in eval() mode"
    )


def meaning(closed: jcore.ClosedJaxpr) -> list[str]:
    """Return one digest per output of what it is computed from, in whatever order."""
    digests: dict[Any, str] = {
        variable: _digest("input", index) for index, variable in enumerate(closed.jaxpr.invars)
    }
    for variable, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        array = np.asarray(constant)
        digests[variable] = _digest("constant", array.dtype, array.shape, array.tobytes())

    def digest_of(atom: Any) -> str:
        return digests[atom] if is_var(atom) else _digest("literal", atom.aval, repr(atom.val))

    for equation in closed.jaxpr.eqns:
        parameters = {name: str(value) for name, value in sorted(equation.params.items())}
        inputs = [digest_of(atom) for atom in equation.invars]
        for place, variable in enumerate(equation.outvars):
            digests[variable] = _digest(equation.primitive.name, parameters, inputs, place)
    return [digest_of(atom) for atom in closed.jaxpr.outvars]


def _digest(*parts: Any) -> str:
    # Functions among an equation's parameters are written with their addresses.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr([str(part) for part in parts]))
    return hashlib.sha256(text.encode()).hexdigest()


def _modules(network: nnx.Module) -> dict[str, nnx.Module]:
    """Return path, with dots → module."""
    found = nnx.iter_modules(network)
    return {".".join(str(part) for part in path): module for path, module in found}


def _snapshot(modules: Mapping[str, nnx.Module]) -> dict[tuple[str, str], Any]:
    """Return what modules keep in Python, such that a change compares unequal."""
    return {
        (path, name): frozen
        for path, module in modules.items()
        for name, value in vars(module).items()
        if not name.startswith(BOOKKEEPING) and (frozen := _frozen(value)) is not None
    }


def _frozen(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return a comparable stand-in for plain values, containers and objects, None for all else.

    Args:
        value: What a module, container or object holds.
        inside: The containers and objects around it, by identity, since one may hold itself.
    """
    kind = type(value).__qualname__
    if isinstance(value, VALUES):
        return kind, repr(value)
    if id(value) in inside:
        return kind, "itself", inside.index(id(value))
    inside = (*inside, id(value))
    if isinstance(value, np.ndarray):
        return kind, str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return kind, [(repr(key), _element(item, inside)) for key, item in value.items()]
    if isinstance(value, (*CONTAINERS, tuple, frozenset)):
        return kind, [_element(item, inside) for item in value]
    if is_plain_object(value):
        parts = attributes_of(value).items()
        return kind, [(name, _element(item, inside)) for name, item in parts]
    return None


def _element(item: Any, inside: tuple[int, ...]) -> Any:
    # Other objects by identity: whether two arrays are equal is not known in a trace.
    frozen = _frozen(item, inside)
    return id(item) if frozen is None else frozen


@contextlib.contextmanager
def _noted_assignments(
    modules: Mapping[str, nnx.Module],
) -> Iterator[dict[tuple[str, str], str]]:
    """Collect the line of each assignment to an attribute of one of `modules`."""
    paths = {id(module): path for path, module in modules.items()}
    lines: dict[tuple[str, str], str] = {}
    with contextlib.ExitStack() as restore:
        for cls in {type(module) for module in modules.values()}:
            restore.enter_context(_noting(cls, paths, lines))
        yield lines


@contextlib.contextmanager
def _noting(cls: Any, paths: dict[int, str], lines: dict[tuple[str, str], str]) -> Iterator[None]:
    inherited = "__setattr__" not in vars(cls)
    original = cls.__setattr__

    def noting(self: Any, name: str, value: Any) -> None:
        if id(self) in paths:
            lines[paths[id(self)], name] = line_that_called()
        original(self, name, value)

    cls.__setattr__ = noting
    try:
        yield
    finally:
        if inherited:
            del cls.__setattr__
        else:
            cls.__setattr__ = original


def _line_of_call(module: nnx.Module) -> str:
    """Return where the module's call is written, for changes that are no assignment."""
    call: Any = type(module).__call__ if callable(module) else None
    code = getattr(inspect.unwrap(call), "__code__", None) if call is not None else None
    if code is None:
        return "an unknown line"
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})"
