"""Built-in environments by name, so that records and command lines can ask for one."""

from typing import Any

from nnx_ppo.environments.balance import Balance
from nnx_ppo.environments.swing_up import SwingUp
from nnx_ppo.environments.swing_up_delayed import SwingUpDelayed
from nnx_ppo.environments.two_arm import TwoArm

ENVIRONMENTS: dict[str, Any] = {
    "swing_up": SwingUp,
    "swing_up_delayed": SwingUpDelayed,
    "balance": Balance,
    "two_arm": TwoArm,
}
"""Classes of the built-in environments."""


def make_environment(name: str, **arguments: Any) -> Any:
    """Makes a built-in environment.

    Args:
        name: A key of ``ENVIRONMENTS``.
        **arguments: Passed on to its class.

    Raises:
        ValueError: there is no environment of this name.

    Example:
        >>> import jax
        >>> environment = make_environment("swing_up")
        >>> environment.reset(jax.random.key(0)).obs.shape
        (6,)
    """
    if name not in ENVIRONMENTS:
        raise ValueError(
            f"there is no built-in environment {name!r}; the built-in ones are "
            f"{sorted(ENVIRONMENTS)}"
        )
    return ENVIRONMENTS[name](**arguments)
