"""The command `nnx-ppo`. Importing it needs only the standard library."""

from nnx_ppo.cli.app import main

__all__ = ["main"]
