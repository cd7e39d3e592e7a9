"""Plain lists and dictionaries of the user's network are never those of a copy."""

from __future__ import annotations

import collections

import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from export import NetworkError, export_policy, verify_parity
from export.own_containers import own_containers
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput


class Collects(StatefulModule):
    """Keeps all that went by, in containers at any depth, and does not use it."""

    def __init__(self, broken=False):
        self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        self.seen = []
        self.by_name = {"deep": ([], {"deeper": collections.deque(maxlen=9)})}
        self.same = self.by_name["deep"][0]
        self.names = {"a"}
        self.broken = broken

    def initialize_state(self, batch_size):
        self.seen.append(batch_size)
        return jp.zeros((batch_size, 2))

    def reset_state(self, prev_state):
        self.seen.append(prev_state)
        return jp.zeros_like(prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        action = self.layer(obs) + module_state
        for container in (self.seen, self.same, self.by_name["deep"][1]["deeper"]):
            container.append(action)
        self.names.add("b")
        if self.broken:
            raise RuntimeError("broken")
        return StatefulModuleOutput(action, action, jp.array(0.0), {})


def untouched(network):
    return (
        network.seen == []
        and network.by_name == {"deep": ([], {"deeper": collections.deque()})}
        and network.same is network.by_name["deep"][0]
        and network.names == {"a"}
    )


def test_an_export_and_its_proof_leave_no_tracer_in_the_users_network(tmp_path):
    network = Collects()
    export_policy(network, np.zeros(3, np.float32), tmp_path / "policy", formats=["stablehlo"])
    assert untouched(network)
    assert verify_parity(tmp_path / "policy", network, steps=10, batch_sizes=[2]).passed
    assert untouched(network)


def test_an_export_that_fails_leaves_none_either(tmp_path):
    network = Collects(broken=True)
    with pytest.raises(NetworkError, match="broken"):
        export_policy(network, np.zeros(3, np.float32), tmp_path / "policy")
    assert untouched(network)


def test_what_a_copy_shares_within_itself_it_goes_on_sharing():
    network = Collects()
    network.by_name["itself"] = network.by_name
    network.pair = collections.namedtuple("Two", "one two")(network.seen, 1)
    copy = nnx.merge(*nnx.split(network), copy=True)
    own_containers(copy)
    assert copy.by_name is not network.by_name and copy.by_name["itself"] is copy.by_name
    assert copy.same is copy.by_name["deep"][0] and copy.same is not network.same
    assert copy.pair.one is copy.seen and copy.pair.two == 1
    assert type(copy.pair) is type(network.pair)
    copy.by_name["deep"][1]["deeper"].extend(range(20))
    assert copy.by_name["deep"][1]["deeper"].maxlen == 9
    assert network.by_name["deep"] == ([], {"deeper": collections.deque()})
