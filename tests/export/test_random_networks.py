"""Random networks: each pass keeps the step, and in the slow part every format the network."""

from __future__ import annotations

import pytest
import random_network_checks as checks
from hypothesis import given, settings
from hypothesis import strategies as st
from random_network_strategies import networks
from random_networks import (
    Action,
    Array,
    Chain,
    Edge,
    Fork,
    Graph,
    Latent,
    Linear,
    Lstm,
    Network,
    Past,
    Tree,
    build,
)

from export.lowering.registry import RULES
from export.passes import pipeline
from export.passes.rewrite import constants_of, is_var, rebuild

PORTIONS, PER_PORTION = 12, 25
"""Of the networks that all formats are compared on: 300."""

EVERYTHING = Network(
    observation=Tree("pair", (Array((3,), "float32"), Tree("dict", (Array((), "bool"),)))),
    trunk=(
        Fork("concat", (Chain((Lstm(3),)), Chain((Past(2), Linear(2, "tanh"))))),
        Latent(2),
        Graph((2, 3), ("tanh", "none"), (Edge(0, 1), Edge(1, 2, 3), Edge(2, 2, 1, "gru"))),
    ),
    action=Tree("reading", (Action(1), Tree("list", (Action(2),)))),
    mean=1e4,
    std=1e-2,
)


@settings(checks.QUIET, max_examples=2, derandomize=True)
@given(networks())
def test_each_pass_keeps_what_a_random_network_puts_out(described):
    assert checks.check_passes(described) == 2 + 2 * len(pipeline.SWITCHABLE)


@pytest.mark.slow
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_every_format_keeps_what_random_networks_put_out(portion):
    passed = checks.check_distinct(
        networks(), checks.check_parity, count=PER_PORTION, portion=portion, portions=PORTIONS
    )
    assert len(passed) == PER_PORTION


def test_the_slow_part_compares_three_hundred_networks_of_every_kind():
    assert PORTIONS * PER_PORTION == 300
    drawn = checks.check_distinct(networks(), lambda _: None, count=100)
    assert len(drawn) == 100
    kinds = ["Graph", "Lstm", "Gru", "Past(", "PastOfTree", "Latent", "Norm", "Scaled", "Chain"]
    kinds += ["'parallel'", "'merge'", "'concat'", "'map'", "'list'", "'pair'", "'reading'"]
    kinds += ["mean=10000.0", "mean=None", "critic=True", "critic=False", "uint8", "bool"]
    assert [kind for kind in kinds if not any(kind in text for text in drawn)] == []


def test_a_description_reads_back_as_the_same_network():
    assert eval(repr(EVERYTHING)) == EVERYTHING
    _, observation = build(EVERYTHING)
    assert observation.first.shape == (3,) and observation.second["k0"].dtype == bool
    assert checks.check_passes(EVERYTHING) == 2 + 2 * len(pipeline.SWITCHABLE)


def without_tanh(closed):
    """A pass at fault: it takes tanh for an operation that changes nothing."""
    inputs = {e.outvars[0]: e.invars[0] for e in closed.jaxpr.eqns if e.primitive.name == "tanh"}
    equations = [
        e.replace(invars=[inputs.get(a, a) if is_var(a) else a for a in e.invars])
        for e in closed.jaxpr.eqns
        if e.primitive.name != "tanh"
    ]
    return rebuild(closed, equations, list(closed.jaxpr.outvars), constants_of(closed))


def test_a_failing_network_is_shrunk_and_printed_as_python(monkeypatch):
    passes = (*pipeline.FOR_OWN_RULES[:-1], without_tanh)
    monkeypatch.setattr(checks, "FOR_OWN_RULES", passes)
    layers = st.builds(Linear, st.integers(1, 3), st.sampled_from(["none", "relu", "tanh"]))
    described = st.builds(
        Network,
        st.builds(Array, st.sampled_from([(1,), (4,)]), st.just("float32")),
        st.lists(layers, min_size=1, max_size=3).map(tuple),
        critic=st.just(False),
    )
    with pytest.raises(checks.NetworkFails, match="with all passes, ") as caught:
        checks.check_distinct(described, checks.check_passes, count=20)
    script = str(caught.value).partition("path:\n")[2]
    assert "trunk=(Linear(size=1, activation='tanh'),)" in script
    with pytest.raises(checks.NetworkFails):
        exec(script, {})
    monkeypatch.undo()
    exec(script, {})


def test_a_wrong_rule_is_found_in_the_formats_that_use_it(monkeypatch):
    monkeypatch.setitem(RULES._rules, "tanh", (lambda lowering, equation, x: x, True))
    described = Network(Array((1,), "float32"), trunk=(Linear(1, "tanh"),), critic=False)
    with pytest.raises(checks.NetworkFails, match="action is off by") as caught:
        checks.check_parity(described)
    lines = [line.partition(",")[0] for line in str(caught.value).split("\n") if "is off" in line]
    assert set(lines) == {"saved_model", "onnx"}
    monkeypatch.undo()
    checks.check_parity(described)
