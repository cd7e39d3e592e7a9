"""Training of stateful policies with PPO in JAX and Flax NNX.

This file stays light on purpose: a robot imports `nnx_ppo.cli` where JAX is not installed.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
