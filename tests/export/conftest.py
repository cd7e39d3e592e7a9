"""Bundles that several tests read, exported once per process."""

from __future__ import annotations

import dataclasses
from typing import Any

import export_networks
import pytest

from export import export_policy
from serving.bundle import Bundle


@dataclasses.dataclass(frozen=True)
class Exported:
    network: Any
    observation: Any
    bundle: Bundle


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Return a function from a network's name to the network and its bundle in all formats."""
    made: dict[str, Exported] = {}

    def make(name: str) -> Exported:
        if name not in made:
            network, observation = export_networks.make(name)
            path = tmp_path_factory.mktemp("bundles") / name
            made[name] = Exported(network, observation, export_policy(network, observation, path))
        return made[name]

    return make
