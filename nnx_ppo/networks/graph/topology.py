"""The order in which a graph's nodes can be computed within one step."""

from collections.abc import Iterable, Sequence


def topological_order(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Orders nodes so that every edge points forward (Kahn, 1962).

    Nodes that are ready at the same time keep the order of ``names``, so that the same graph
    always gives the same program.

    Args:
        names: The nodes.
        edges: Pairs of source and destination that must hold within one step; repeats are fine.

    Returns:
        The nodes in order.

    Raises:
        ValueError: some edges form a cycle; the message names the nodes that are stuck.
    """
    successors: dict[str, list[str]] = {name: [] for name in names}
    waiting_for = dict.fromkeys(names, 0)
    for source, destination in edges:
        successors[source].append(destination)
        waiting_for[destination] += 1

    ready = [name for name in names if waiting_for[name] == 0]
    # The list grows while it is read: what becomes ready joins the end of the queue.
    for name in ready:
        for destination in successors[name]:
            waiting_for[destination] -= 1
            if waiting_for[destination] == 0:
                ready.append(destination)

    if len(ready) < len(names):
        stuck = [name for name in names if waiting_for[name] > 0]
        raise ValueError(
            f"connections with delay 0 form a cycle that holds up the populations {stuck}; give at "
            f"least one connection of each cycle a delay of 1 or more"
        )
    return tuple(ready)
