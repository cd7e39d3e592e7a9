"""What a network keeps in Python between calls is refused, wherever it keeps it."""

from __future__ import annotations

import collections
import dataclasses
import random
import threading

import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from export import HiddenStateError, export_policy
from export.network_copy import export_copy
from export.plain_state import attributes_of, is_plain_object
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

OBS = np.zeros(3, np.float32)


class Keeper(StatefulModule):
    """Multiplies the observation by what `read` returns after `change`."""

    def __init__(self, kept, change, read):
        self.kept = kept
        self.change = change
        self.read = read

    def __call__(self, module_state, obs, rollout_extras=None):
        factor = self.read(self.kept)
        self.change(self.kept)
        return StatefulModuleOutput(module_state, obs * factor, jp.array(0.0), {})


class Filter:
    def __init__(self):
        self.count = 1.0
        self.table = np.ones(2, np.float32)

    def advance(self):
        self.count += 1.0

    def fill(self):
        self.table[1] += 1.0


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 1.0

    def advance(self):
        self.count *= -1.0


@dataclasses.dataclass(frozen=True)
class Settings:
    history: list


CASES = {
    "a deque": (
        lambda: collections.deque([1.0, 2.0, 3.0]),
        lambda kept: kept.rotate(1),
        lambda kept: kept[0],
    ),
    "a list in a dictionary": (
        lambda: {"deep": [[1.0]]},
        lambda kept: kept["deep"][0].insert(0, 2.0),
        lambda kept: kept["deep"][0][0],
    ),
    "an attribute of an object": (Filter, Filter.advance, lambda kept: kept.count),
    "an array of an object": (Filter, Filter.fill, lambda kept: float(kept.table[1])),
    "an object in a tuple": (
        lambda: ("name", [Filter()]),
        lambda kept: kept[1][0].advance(),
        lambda kept: kept[1][0].count,
    ),
    "a value that goes to and fro in a slot": (Slotted, Slotted.advance, lambda kept: kept.count),
    "a list of a frozen dataclass": (
        lambda: Settings([1.0]),
        lambda kept: kept.history.insert(0, 3.0),
        lambda kept: kept.history[0],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_state_of_a_module_is_refused_and_the_users_is_untouched(case, tmp_path):
    make, change, read = CASES[case]
    network = Keeper(make(), change, read)
    with pytest.raises(HiddenStateError, match="attribute 'kept'") as caught:
        export_policy(network, OBS, tmp_path / "policy")
    assert "test_python_state.py:" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert read(network.kept) == read(make())


def counted():
    count = [0]

    def draw(_):
        count[0] += 1
        return float(count[0])

    return draw


@pytest.mark.parametrize(
    "draw",
    [
        counted(),
        lambda _: float(np.random.normal()),
        lambda _: random.random(),
        lambda kept: float(kept.normal()),
    ],
    ids=["a closure", "NumPy's numbers", "Python's numbers", "a generator"],
)
def test_state_that_is_no_attribute_is_refused_too(draw, tmp_path):
    network = Keeper(np.random.default_rng(0), lambda kept: None, draw)
    with pytest.raises(HiddenStateError, match="no attribute of a module"):
        export_policy(network, OBS, tmp_path / "policy")


def test_an_object_that_counts_and_is_not_read_is_no_state(tmp_path):
    network = Keeper(Filter(), Filter.advance, lambda kept: 2.0)
    bundle = export_policy(network, OBS, tmp_path / "policy", formats=["stablehlo"])
    assert list(bundle.manifest.artefacts) == ["stablehlo"]
    assert network.kept.count == 1.0


def test_what_is_copied_and_what_is_left():
    shared = Filter()
    lock = threading.Lock()
    network = Keeper([shared, lock, nnx.relu], lambda kept: None, lambda kept: 1.0)
    network.same = shared
    copy = export_copy(network).merge()
    assert copy.kept[0] is copy.same and copy.same is not shared
    assert copy.same.table is not shared.table
    assert copy.kept[1] is lock and copy.kept[2] is nnx.relu
    assert is_plain_object(shared) and attributes_of(Slotted()) == {"count": 1.0}
    assert not any(map(is_plain_object, (lock, nnx.relu, np.ones(1), network, Filter, random)))
