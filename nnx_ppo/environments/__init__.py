"""Built-in environments in pure JAX, each with a return that counts as solving it."""

from nnx_ppo.environments.balance import Balance
from nnx_ppo.environments.registry import ENVIRONMENTS, make_environment
from nnx_ppo.environments.state import DelayedState, EnvironmentState
from nnx_ppo.environments.swing_up import SwingUp
from nnx_ppo.environments.swing_up_delayed import SwingUpDelayed
from nnx_ppo.environments.two_arm import TwoArm

__all__ = [
    "make_environment",
    "ENVIRONMENTS",
    "SwingUp",
    "SwingUpDelayed",
    "Balance",
    "TwoArm",
    "EnvironmentState",
    "DelayedState",
]
