"""A network given as populations and the delayed connections between them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx

from nnx_ppo.networks.delay_line import RING, DelayLine
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph.connection import Connection
from nnx_ppo.networks.graph.population import Population
from nnx_ppo.networks.graph.topology import topological_order
from nnx_ppo.networks.regularization import sum_regularization
from nnx_ppo.networks.types import (
    ACTIVATION_KEY,
    BatchSize,
    ModuleState,
    StatefulModule,
    StatefulModuleOutput,
)


class PopulationGraph(StatefulModule):
    """Populations that sum their incoming connections, each of which has a delay.

    A graph is described by ``add_input``, ``add_population``, ``add_output`` and ``connect``, then
    frozen by ``finalize``; after that it is a module like any other. A connection of delay 0 reads
    its source in the present step, one of delay k reads the source of k steps ago: zeros until
    there is such a step. Recurrence needs a delay of at least 1.

    The carry is ``{"populations": {name: {"buffer": (batch, depth, size), "buffer_idx": (batch,)}},
    "connections": [carry of each transform]}``; a population without delayed connections has an
    empty dict, and ``buffer_idx`` is absent where the delay line keeps no pointer.

    Example:
        >>> from flax import nnx
        >>> import jax.numpy as jp
        >>> graph = PopulationGraph(nnx.Rngs(0))
        >>> graph.add_input("eye", 8, input_from="image")
        >>> graph.add_output("motor", 2, activation=nnx.tanh)
        >>> graph.connect("eye", "motor", delay=2)
        >>> graph.finalize()
        >>> result = graph(graph.initialize_state(4), {"image": jp.ones((4, 8))})
        >>> result.output["motor"].shape
        (4, 2)

    Attributes:
        populations: Populations by name.
        connections: Connections in the order they were made.
        delay_line: Layout of the buffers.
        record_activations: Whether metrics hold every population's activation (see
            ``networks.recording``).
    """

    def __init__(self, rngs: nnx.Rngs):
        """Starts an empty graph.

        Args:
            rngs: Source of the default transforms' weights.
        """
        self.rngs = rngs
        self.populations = nnx.Dict()
        self.connections = nnx.List()
        self.delay_line: DelayLine = RING
        self.record_activations = False
        # Flax sorts the entries of ``populations`` in every transformation; these keep the order.
        self._names: tuple[str, ...] = ()
        self._order: tuple[str, ...] = ()
        self._incoming: tuple[tuple[int, ...], ...] = ()
        self._finalized = False

    def add_population(
        self, name: str, size: int, *, activation: Callable[..., Any] | None = None
    ) -> None:
        """Adds an internal population.

        Args:
            name: Unique name.
            size: Number of units.
            activation: Elementwise function of the summed input, or None.

        Raises:
            ValueError: the name is taken, or the size is not positive.
            RuntimeError: the graph is finalized.
        """
        self._add(Population(name, size, activation, input_from=None, output_to=None))

    def add_input(
        self,
        name: str,
        size: int,
        *,
        input_from: str,
        activation: Callable[..., Any] | None = None,
    ) -> None:
        """Adds a population whose input includes the observation's entry ``input_from``.

        Other arguments and errors as for ``add_population``.
        """
        self._add(Population(name, size, activation, input_from=input_from, output_to=None))

    def add_output(
        self,
        name: str,
        size: int,
        *,
        output_to: str | None = None,
        activation: Callable[..., Any] | None = None,
    ) -> None:
        """Adds a population that appears in the graph's output under ``output_to`` (or its name).

        Other arguments and errors as for ``add_population``; the output's key must be unique too.
        """
        key = name if output_to is None else output_to
        for other in self._names:
            if self.populations[other].output_to == key and other != name:
                raise ValueError(
                    f"population {name!r}: the output {key!r} is that of population {other!r}"
                )
        self._add(Population(name, size, activation, input_from=None, output_to=key))

    def connect(
        self,
        src: str,
        dst: str,
        *,
        transform: StatefulModule | None = None,
        delay: int = 0,
        reciprocal: bool = False,
    ) -> None:
        """Adds a connection.

        Args:
            src: Name of the source population.
            dst: Name of the destination population.
            transform: Module from ``(batch, source size)`` to ``(batch, destination size)``; None
                for a new linear ``Dense``.
            delay: Age of what is read, in steps.
            reciprocal: Whether to add the connection back, with the same delay and a ``Dense`` of
                its own; not together with ``transform``.

        Raises:
            ValueError: a population is unknown, the delay is negative, or ``reciprocal`` comes with
                a transform.
            RuntimeError: the graph is finalized.
        """
        self._require_finalized(False)
        if reciprocal and transform is not None:
            raise ValueError(
                f"connection {src!r} -> {dst!r}: reciprocal=True makes its own transforms; connect "
                f"each direction separately to give them"
            )
        for end in (src, dst):
            if end not in self._names:
                raise ValueError(
                    f"connection {src!r} -> {dst!r}: there is no population {end!r}; known are "
                    f"{list(self._names)}"
                )
        if transform is None:
            sizes = self.populations[src].size, self.populations[dst].size
            transform = Dense(*sizes, rngs=self.rngs)
        self.connections.append(Connection(src, dst, transform, delay))
        if reciprocal:
            self.connect(dst, src, delay=delay)

    def finalize(self) -> None:
        """Checks and freezes the graph.

        Raises:
            ValueError: connections of delay 0 form a cycle.
            RuntimeError: the graph is already finalized.
        """
        self._require_finalized(False)
        connections = list(self.connections)
        self._order = topological_order(
            self._names, [(edge.src, edge.dst) for edge in connections if edge.delay == 0]
        )
        self._incoming = tuple(
            tuple(index for index, edge in enumerate(connections) if edge.dst == name)
            for name in self._order
        )
        for edge in connections:
            source = self.populations[edge.src]
            source.max_outgoing_delay = max(source.max_outgoing_delay, edge.delay)
        # The streams have served their purpose; kept, they would travel through every checkpoint.
        del self.rngs
        self._finalized = True

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Computes one step of all populations.

        Args:
            module_state: The carry.
            obs: Mapping with a ``(batch, size)`` array for each input population.
            rollout_extras: None, or the transforms' extras.

        Returns:
            Output ``{key: (batch, size)}`` of the output populations. Metrics hold the transforms'
            own, where they have any, as ``{"connections": {index: metrics}}``.

        Raises:
            ValueError: an observation or a transform's output does not have its population's size,
                or the carry belongs to another graph.
            KeyError: the observation lacks an input population's entry.
            RuntimeError: the graph is not finalized.
        """
        self._require_finalized(True)
        self._require_carry(module_state)
        pasts, states = module_state["populations"], module_state["connections"]
        all_extras = (
            [None] * len(self.connections)
            if rollout_extras is None
            else rollout_extras["connections"]
        )
        activations: dict[str, jax.Array] = {}
        results: dict[int, StatefulModuleOutput] = {}
        reads: dict[tuple[str, int], jax.Array] = {}

        def source_of(edge: Connection) -> jax.Array:
            if edge.delay == 0:
                return activations[edge.src]
            # Connections that read the same past share one read.
            if (edge.src, edge.delay) not in reads:
                past = pasts[edge.src]
                reads[edge.src, edge.delay] = self.delay_line.read(
                    past["buffer"], past.get("buffer_idx"), edge.delay
                )
            return reads[edge.src, edge.delay]

        for name, incoming in zip(self._order, self._incoming, strict=True):
            population = self.populations[name]
            terms = [] if population.input_from is None else [_observed(population, obs)]
            for index in incoming:
                edge = self.connections[index]
                results[index] = edge.transform(states[index], source_of(edge), all_extras[index])
                terms.append(_require_size(population, edge, results[index].output))
            if not terms:
                terms = [jp.zeros((_batch_size(obs, module_state), population.size))]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            activation = population.activation
            activations[name] = total if activation is None else activation(total)

        ordered = [results[index] for index in range(len(self.connections))]
        return StatefulModuleOutput(
            next_state={
                "populations": {
                    name: self._push(pasts[name], activations[name]) for name in self._names
                },
                "connections": [result.next_state for result in ordered],
            },
            output={
                self.populations[name].output_to: activations[name]
                for name in self._names
                if self.populations[name].output_to is not None
            },
            regularization_loss=sum_regularization(r.regularization_loss for r in ordered),
            metrics=self._metrics(activations, ordered),
            rollout_extras={"connections": [result.rollout_extras for result in ordered]},
        )

    def initialize_state(self, batch_size: BatchSize) -> dict[str, Any]:
        """Returns empty (zero) buffers and the transforms' fresh carries.

        Raises:
            RuntimeError: the graph is not finalized.
        """
        self._require_finalized(True)
        pasts: dict[str, Any] = {}
        for name in self._names:
            population = self.populations[name]
            depth = population.max_outgoing_delay
            pasts[name] = {}
            if depth > 0:
                buffer = jp.zeros((batch_size, depth, population.size))
                pasts[name] = _past(buffer, self.delay_line.initial_pointer(batch_size))
        edges = self.connections
        return {
            "populations": pasts,
            "connections": [edge.transform.initialize_state(batch_size) for edge in edges],
        }

    def reset_state(self, prev_state: ModuleState) -> dict[str, Any]:
        """Empties the buffers and resets the transforms.

        Raises:
            RuntimeError: the graph is not finalized.
            ValueError: the carry belongs to another graph.
        """
        self._require_finalized(True)
        self._require_carry(prev_state)
        pasts = {
            name: _past(
                jp.zeros_like(past["buffer"]),
                self.delay_line.reset_pointer(past.get("buffer_idx")),
            )
            if past
            else {}
            for name, past in prev_state["populations"].items()
        }
        edges = zip(self.connections, prev_state["connections"], strict=True)
        return {
            "populations": pasts,
            "connections": [edge.transform.reset_state(state) for edge, state in edges],
        }

    def update_statistics(self, rollout_extras: Any) -> None:
        """Hands each transform its extras."""
        for edge, extras in zip(self.connections, rollout_extras["connections"], strict=True):
            edge.transform.update_statistics(extras)

    def _add(self, population: Population) -> None:
        self._require_finalized(False)
        if population.name in self._names:
            raise ValueError(f"population {population.name!r} already exists")
        self.populations[population.name] = population
        self._names = (*self._names, population.name)

    def _push(self, past: Any, activation: jax.Array) -> dict[str, Any]:
        if not past:
            return {}
        pointer, depth = past.get("buffer_idx"), past["buffer"].shape[1]
        return _past(
            self.delay_line.push(past["buffer"], pointer, activation),
            self.delay_line.advance(pointer, depth),
        )

    def _metrics(
        self, activations: dict[str, jax.Array], results: list[StatefulModuleOutput]
    ) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        transforms = {index: r.metrics for index, r in enumerate(results) if r.metrics}
        if transforms:
            metrics["connections"] = transforms
        if self.record_activations:
            metrics[ACTIVATION_KEY] = activations
        return metrics

    def _require_finalized(self, finalized: bool) -> None:
        if self._finalized and not finalized:
            raise RuntimeError("the PopulationGraph is finalized and cannot be changed any more")
        if finalized and not self._finalized:
            raise RuntimeError(
                "the PopulationGraph is not finalized; call finalize() once it is complete"
            )

    def _require_carry(self, carry: ModuleState) -> None:
        names, count = set(carry["populations"]), len(carry["connections"])
        if names != set(self._names) or count != len(self.connections):
            raise ValueError(
                f"PopulationGraph: the carry has the populations {sorted(names)} and {count} "
                f"connections, the graph {sorted(self._names)} and {len(self.connections)}; use "
                f"what initialize_state or the previous step returned"
            )


def _past(buffer: jax.Array, pointer: jax.Array | None) -> dict[str, jax.Array]:
    return {"buffer": buffer} if pointer is None else {"buffer": buffer, "buffer_idx": pointer}


def _observed(population: Population, obs: Any) -> jax.Array:
    """Returns what an input population reads from the observation, as floats."""
    key = population.input_from
    if not isinstance(obs, Mapping) or key not in obs:
        found = list(obs) if isinstance(obs, Mapping) else type(obs).__name__
        raise KeyError(
            f"population {population.name!r} reads the observation's entry {key!r}; found {found}"
        )
    value = jp.asarray(obs[key])
    if value.shape[1:] != (population.size,):
        raise ValueError(
            f"population {population.name!r} has size {population.size}, but the observation's "
            f"entry {key!r} has shape {value.shape}; expected (batch, {population.size})"
        )
    # Counts and flags are legal observations; units are floats.
    return value if jp.issubdtype(value.dtype, jp.floating) else value.astype(jp.float32)


def _require_size(population: Population, edge: Connection, output: Any) -> jax.Array:
    # Without this check an output of size 1 would be broadcast to all units in silence.
    if jp.shape(output)[1:] != (population.size,):
        raise ValueError(
            f"connection {edge.src!r} -> {edge.dst!r}: the transform returned shape "
            f"{jp.shape(output)}, expected (batch, {population.size})"
        )
    return output


def _batch_size(obs: Any, carry: ModuleState) -> BatchSize:
    leaves = jax.tree.leaves((obs, carry))
    if not leaves:
        raise ValueError(
            "PopulationGraph: neither observation nor carry has an array that tells the batch size"
        )
    return leaves[0].shape[0]
