"""How to build a network or environment again: an importable function and its arguments."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx

from nnx_ppo.algorithms.checkpoint_format.import_path import import_path_of, resolve_import_path
from nnx_ppo.algorithms.checkpoint_format.json_values import (
    NotRecordable,
    from_json_value,
    to_json_value,
)
from nnx_ppo.algorithms.errors import FactoryRecordError

RNGS = "rngs"


@dataclasses.dataclass(frozen=True)
class FactoryRecord:
    """A factory function by name, with the arguments of one call.

    Example:
        >>> from nnx_ppo.networks.factories import make_mlp_actor_critic
        >>> record = record_factory(
        ...     make_mlp_actor_critic,
        ...     obs_size=3, action_size=1, actor_hidden_sizes=[8], critic_hidden_sizes=[8],
        ... )
        >>> record.factory
        'nnx_ppo.networks.factories:make_mlp_actor_critic'
        >>> network = record.build()
    """

    factory: str
    """Where to import it from, ``"package.module:function"``."""
    arguments: dict[str, Any]
    """Its keyword arguments as JSON values, functions as ``{"callable": "flax.nnx:swish"}``."""
    seed: int = 0
    """Seed of the ``nnx.Rngs`` passed as ``rngs``, if the factory takes such an argument."""

    def build(self) -> Any:
        """Calls the factory.

        This runs the function that the record names: build records only from sources whose code
        you would run. Functions of the standard library, which build no networks, are refused.

        Raises:
            FactoryRecordError: the function cannot be imported or does not take the arguments.
        """
        if self.factory.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:
            raise FactoryRecordError(f"{self.factory} is no factory of networks or environments")
        try:
            function = resolve_import_path(self.factory)
            arguments = {name: from_json_value(value) for name, value in self.arguments.items()}
        except (ImportError, AttributeError, ValueError) as error:
            raise FactoryRecordError(
                f"cannot rebuild what {self.factory} made: {error}; make that module importable "
                f"(run from the directory that holds it, or add it to PYTHONPATH)"
            ) from error
        if not callable(function):
            raise FactoryRecordError(f"{self.factory} is {function!r}, not a function")
        if _takes_rngs(function):
            arguments[RNGS] = nnx.Rngs(self.seed)
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise FactoryRecordError(
                f"{self.factory} does not take the recorded arguments {sorted(arguments)}: {error}"
            ) from error
        return function(**arguments)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as a JSON object."""
        return {"factory": self.factory, "arguments": self.arguments, "seed": self.seed}

    @classmethod
    def from_json(cls, record: Any) -> "FactoryRecord":
        """Reads what ``to_json`` returned.

        Raises:
            FactoryRecordError: it is not such an object.
        """
        if not isinstance(record, Mapping) or set(record) != {"factory", "arguments", "seed"}:
            raise FactoryRecordError(
                f"not a factory record: {record!r}; expected the keys factory, arguments, seed"
            )
        factory, arguments, seed = record["factory"], record["arguments"], record["seed"]
        if not (isinstance(factory, str) and isinstance(arguments, dict) and type(seed) is int):
            raise FactoryRecordError(
                f"not a factory record: {record!r}; expected a string, an object and an integer"
            )
        return cls(factory, arguments, seed)


def record_factory(
    function: Callable[..., Any], seed: int = 0, /, **arguments: Any
) -> FactoryRecord:
    """Records a factory function and its arguments, checking that the call can be repeated.

    Args:
        function: A function or class at the top level of a module.
        seed: Seed of the ``nnx.Rngs`` that the factory gets as ``rngs``.
        **arguments: Its other arguments: numbers, strings, lists, dicts, and functions that can
            themselves be imported, such as activations.

    Raises:
        FactoryRecordError: the function or an argument cannot be recorded, or the function does
            not take these arguments.
    """
    path = import_path_of(function)
    if path is None:
        raise FactoryRecordError(
            f"{function!r} cannot be imported by name; a factory is defined at the top level of a "
            f"module, not inside a function, as a lambda or by functools.partial"
        )
    if RNGS in arguments:
        raise FactoryRecordError(
            f"{path}: leave out rngs; it is rebuilt as nnx.Rngs(seed), so pass the seed instead"
        )
    given = {**arguments, RNGS: None} if _takes_rngs(function) else arguments
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise FactoryRecordError(f"{path} does not take these arguments: {error}") from error
    try:
        values = {name: to_json_value(value, name) for name, value in arguments.items()}
    except NotRecordable as error:
        raise FactoryRecordError(f"{path}: {error}") from error
    return FactoryRecord(path, values, seed)


def _takes_rngs(function: Callable[..., Any]) -> bool:
    return RNGS in inspect.signature(function).parameters
