"""A named group of units in a population graph."""

from collections.abc import Callable
from typing import Any

from flax import nnx


class Population(nnx.Module):
    """A node of the graph: it sums what comes in and applies its activation once.

    Attributes:
        name: Unique name in the graph.
        size: Number of units.
        activation: Elementwise function of the summed input, or None.
        input_from: Key of the observation that is added to the input, or None.
        output_to: Key of the graph's output under which the units appear, or None.
        max_outgoing_delay: Largest delay of a connection that starts here, in steps; set when the
            graph is finalized. The population's past is kept for as many steps.
    """

    def __init__(
        self,
        name: str,
        size: int,
        activation: Callable[..., Any] | None,
        input_from: str | None,
        output_to: str | None,
    ):
        """Creates the population.

        Raises:
            ValueError: ``size`` is not positive.
        """
        if size < 1:
            raise ValueError(f"population {name!r} must have a positive size, got {size}")
        self.name = name
        self.size = size
        self.activation = activation
        self.input_from = input_from
        self.output_to = output_to
        self.max_outgoing_delay = 0
