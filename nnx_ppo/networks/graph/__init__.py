"""Networks described as populations of units and the connections between them."""

from nnx_ppo.networks.graph.connection import Connection
from nnx_ppo.networks.graph.population import Population
from nnx_ppo.networks.graph.population_graph import PopulationGraph

__all__ = ["PopulationGraph", "Population", "Connection"]
