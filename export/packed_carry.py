"""The carry once delay buffers are packed: which port holds what, and from what it starts."""

from __future__ import annotations

import numpy as np

from export.carry_conversion import put_slots
from export.passes import PackedDelays
from export.structure import leaf_names
from serving.manifest import CarryPort

PORT = "delays"
"""Last part of the name of a port with packed delays."""


class PackedCarry:
    """Ports and initial values of a carry of which some leaves are packed.

    Attributes:
        ports: The ports, in the order of the step's inputs.
        initial: Port name → array without a batch axis.
        places: For each leaf before packing, the name of its port and, if it is packed, where in
            it the value of 1, 2, … steps ago begins.
    """

    def __init__(
        self, leaf_ports: list[CarryPort], rows: list[np.ndarray], packed: list[PackedDelays]
    ):
        gone = {position for entry in packed for position in entry.members}
        stay = [index for index in range(len(leaf_ports)) if index not in gone]
        # The names of what stays do not depend on what is packed.
        taken = [tuple(port.path) for port in leaf_ports]
        names = leaf_names("carry", [*taken, *((PORT,) for _ in packed)])[len(taken) :]
        self.ports = [leaf_ports[index] for index in stay]
        self.initial = {leaf_ports[index].name: rows[index] for index in stay}
        self.places: list[tuple[str, list[int] | None]] = [(port.name, None) for port in leaf_ports]
        for name, entry in zip(names, packed, strict=True):
            row = np.zeros(entry.width, entry.dtype)
            for position, slots in zip(entry.members, entry.slots, strict=True):
                self.places[position] = (name, slots)
                put_slots(row, slots, rows[position])
            self.initial[name] = row
            self.ports.append(
                CarryPort(
                    name=name,
                    path=[],
                    shape=[entry.width],
                    dtype=str(entry.dtype),
                    next_name=f"next_{name}",
                    reset="initial",
                    kind="packed_delays",
                )
            )
