"""Modules that read a delay's ring themselves: an exported step lays its values out otherwise."""

from __future__ import annotations

import export_networks
import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from export import DelayLayoutError, delay_check, export_policy, verify_parity
from export.step import build_step
from nnx_ppo.networks.delay import Delay
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

OBS = np.zeros(4, np.float32)


class ReadsTheDelay(StatefulModule):
    """A delay and something that looks at its carry; subclasses say how."""

    def __init__(self, k_steps=3):
        self.layer = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        self.delay = Delay(jp.zeros(4), k_steps)

    def initialize_state(self, batch_size):
        return {"delay": self.delay.initialize_state(batch_size)}

    def reset_state(self, prev_state):
        return {"delay": self.delay.reset_state(prev_state["delay"])}

    def read(self, carry):
        raise NotImplementedError

    def __call__(self, module_state, obs, rollout_extras=None):
        read = self.read(module_state["delay"])
        out = self.delay(module_state["delay"], obs)
        action = self.layer(out.output) + read
        return StatefulModuleOutput({"delay": out.next_state}, action, jp.array(0.0), {})


class ReadsSlotZero(ReadsTheDelay):
    def read(self, carry):
        return carry["buffer"][:, 0]


class ReadsThroughThePointer(ReadsTheDelay):
    def read(self, carry):
        return carry["buffer"][jp.arange(carry["idx"].shape[0]), carry["idx"]]


class ReadsThePointer(ReadsTheDelay):
    """Goes on in silence where there is no pointer."""

    def read(self, carry):
        pointer = carry.get("idx")
        return jp.zeros(()) if pointer is None else pointer[:, None].astype(jp.float32)


class IsRightInARingOnly(ReadsTheDelay):
    """Knows that there may be no pointer, and takes the oldest value for the newest then."""

    def read(self, carry):
        if "idx" in carry:
            return self.delay.delay_line.read(carry["buffer"], carry["idx"], 1)
        return carry["buffer"][:, -1]


class ReadsTheSum(ReadsTheDelay):
    """Does not depend on the order, so it is exported right."""

    def read(self, carry):
        return carry["buffer"].sum(axis=1)


class ReadsWithTheDelayLine(ReadsTheDelay):
    def read(self, carry):
        return self.delay.delay_line.read(carry["buffer"], carry.get("idx"), 2)


class Flattens(ReadsTheDelay):
    """Keeps the delay's carry as one vector."""

    def initialize_state(self, batch_size):
        carry = self.delay.initialize_state(batch_size)
        parts = [leaf.reshape(batch_size, -1).astype(jp.float32) for leaf in jax.tree.leaves(carry)]
        return {"flat": jp.concatenate(parts, axis=1)}

    def reset_state(self, prev_state):
        return jax.tree.map(jp.zeros_like, prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        flat = module_state["flat"]
        carry = {
            "buffer": flat[:, :12].reshape(-1, 3, 4),
            "idx": flat[:, 12].astype(jp.int32),
        }
        out = self.delay(carry, obs)
        parts = [out.next_state["buffer"].reshape(-1, 12), out.next_state["idx"][:, None]]
        after = jp.concatenate([part.astype(jp.float32) for part in parts], axis=1)
        return StatefulModuleOutput({"flat": after}, self.layer(out.output), jp.array(0.0), {})


@pytest.mark.parametrize("k_steps", [2, 3, 70])
def test_a_slot_read_by_its_number_is_refused_with_the_rings_name(tmp_path, k_steps):
    with pytest.raises(
        DelayLayoutError,
        match=r"acts otherwise.* action is .* instead of .*'delay \(Delay\)' itself, at "
        r".*test_delay_layout_faults\.py:\d+ \(ReadsSlotZero\.read\).*delay_line\.read",
    ):
        export_policy(ReadsSlotZero(k_steps), OBS, tmp_path / "policy", formats=["stablehlo"])
    assert list(tmp_path.iterdir()) == []


def test_a_slot_read_by_its_number_is_refused_at_a_fixed_batch_size(tmp_path):
    with pytest.raises(DelayLayoutError, match=r"acts otherwise.* 'delay \(Delay\)'"):
        export_policy(
            ReadsSlotZero(), OBS, tmp_path / "policy", formats=["stablehlo"], batch_size=3
        )


def test_a_slot_read_from_a_population_graphs_carry_is_refused(tmp_path):
    network, observation = export_networks.make("population_graph")

    class Peeks(StatefulModule):
        def __init__(self):
            self.inner = network

        def initialize_state(self, batch_size):
            return self.inner.initialize_state(batch_size)

        def reset_state(self, prev_state):
            return self.inner.reset_state(prev_state)

        def __call__(self, module_state, obs, rollout_extras=None):
            rings = [
                leaf[:, 0].sum(axis=-1, keepdims=True)
                for path, leaf in jax.tree_util.tree_flatten_with_path(module_state)[0]
                if "'buffer'" in jax.tree_util.keystr(path)
            ]
            assert rings
            out = self.inner(module_state, obs)
            action = out.output.actions + sum(rings)
            return StatefulModuleOutput(out.next_state, action, jp.array(0.0), {})

    with pytest.raises(DelayLayoutError, match=r"acts otherwise.*\(PopulationGraph\)'"):
        export_policy(Peeks(), observation, tmp_path / "policy", formats=["stablehlo"])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            ReadsThroughThePointer,
            r"works with its delays as rings.*KeyError.*idx.*'delay \(Delay\)'.*delay_line\.read",
        ),
        (ReadsThePointer, r"acts otherwise.* 'delay \(Delay\)'"),
        (
            IsRightInARingOnly,
            r"acts otherwise.* action is .* instead of .*'delay \(Delay\)'.*delay_line\.read",
        ),
        (Flattens, r"^carry\['flat'\] is float32\[2, 13\], and float32\[2, 12\] once delays"),
    ],
)
def test_other_uses_of_the_carry_are_refused_with_the_modules_name(tmp_path, network, message):
    with pytest.raises(DelayLayoutError, match=message):
        export_policy(network(), OBS, tmp_path / "policy", formats=["stablehlo"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("network", [ReadsTheSum, ReadsWithTheDelayLine])
def test_what_does_not_depend_on_the_layout_is_exported_right(tmp_path, network):
    export_policy(network(), OBS, tmp_path / "policy", formats=["stablehlo"])
    report = verify_parity(tmp_path / "policy", network(), steps=50, batch_sizes=[2])
    assert report.passed


@pytest.mark.parametrize("name", ["population_graph", "delay"])
def test_a_network_that_leaves_the_ring_to_its_delay_line_costs_no_comparison(monkeypatch, name):
    def compare(*_):
        raise AssertionError("compared step by step")

    monkeypatch.setattr(delay_check, "_difference", compare)
    step = build_step(*export_networks.make(name))
    assert any(port.kind in ("delay_buffer", "packed_delays") for port in step.carry_ports)
    with pytest.raises(AssertionError, match="compared step by step"):
        build_step(ReadsTheSum(), OBS)


class CallsUnderJit(ReadsTheDelay):
    """Takes a slot of the buffer that the delay has just written, inside a function of its own."""

    def __call__(self, module_state, obs, rollout_extras=None):
        out = self.delay(module_state["delay"], obs)
        newest = jax.jit(lambda carry: carry["buffer"][:, 1])(out.next_state)
        action = self.layer(out.output) + newest
        return StatefulModuleOutput({"delay": out.next_state}, action, jp.array(0.0), {})


def test_a_slot_read_from_the_next_carry_is_refused(tmp_path):
    with pytest.raises(DelayLayoutError, match=r"acts otherwise.*'delay \(Delay\)' itself, at "):
        export_policy(CallsUnderJit(), OBS, tmp_path / "policy", formats=["stablehlo"])


class IsChaotic(ReadsTheDelay):
    """Makes another action of every rounding, and chooses between equals."""

    def read(self, carry):
        read = self.delay.delay_line.read
        past = read(carry["buffer"], carry.get("idx"), 1) + read(
            carry["buffer"], carry.get("idx"), 3
        )
        chosen = jp.argmax(jp.sin(1e9 * self.layer(past)), axis=1, keepdims=True)
        return jp.sin(1e9 * self.layer(past)) + chosen.astype(jp.float32)


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_correct_network_is_not_refused_for_its_rounding(tmp_path, batch_size):
    export_policy(
        IsChaotic(), OBS, tmp_path / "policy", formats=["stablehlo"], batch_size=batch_size
    )
