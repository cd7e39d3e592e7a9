"""A directed edge of a population graph."""

from typing import Any

from flax import nnx

from nnx_ppo.networks.types import StatefulModule


class Connection(nnx.Module):
    """An edge of the graph: the source's units of some steps ago, transformed.

    Attributes:
        src: Name of the source population.
        dst: Name of the destination population.
        transform: Module from ``(batch, source size)`` to ``(batch, destination size)``.
        delay: Age of what it reads in steps; 0 is the present step.
    """

    def __init__(self, src: str, dst: str, transform: StatefulModule, delay: int):
        """Creates the connection.

        Raises:
            ValueError: ``delay`` is negative.
        """
        if delay < 0:
            raise ValueError(
                f"connection {src!r} -> {dst!r}: delay must not be negative, got {delay}"
            )
        self.src = src
        self.dst = dst
        self.transform: Any = transform
        self.delay = delay
