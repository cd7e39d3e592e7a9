"""Tests of the delay module in both layouts of its buffer."""

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from jax import export

from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.delay import Delay
from nnx_ppo.networks.delay_line import RING, TIME_ORDERED
from nnx_ppo.networks.utils import Scale


def rollout(net: Any, xs: Any, steps: int, state: Any = None) -> tuple[Any, list[Any]]:
    state = net.initialize_state(jax.tree.leaves(xs)[0].shape[1]) if state is None else state
    outputs = []
    for t in range(steps):
        result = net(state, jax.tree.map(lambda x, t=t: x[t], xs))
        state = result.next_state
        outputs.append(result.output)
    return state, outputs


@pytest.mark.parametrize("k_steps", [1, 2, 4])
@pytest.mark.parametrize("line", [RING, TIME_ORDERED], ids=repr)
def test_the_output_is_the_input_of_k_steps_ago(k_steps: int, line: Any) -> None:
    net = Delay(jp.zeros(3), k_steps, initial_value=-1.5)
    net.delay_line = line
    xs = jp.asarray(np.random.default_rng(0).normal(size=(7, 2, 3)), jp.float32)
    _, outputs = rollout(net, xs, 7)
    for step, output in enumerate(outputs):
        expected = np.full((2, 3), -1.5) if step < k_steps else xs[step - k_steps]
        np.testing.assert_array_equal(output, expected)


def test_carry_layout() -> None:
    net = Delay(jax.ShapeDtypeStruct((3,), jp.float32), 2)
    state = net.initialize_state(4)
    assert {name: (leaf.shape, str(leaf.dtype)) for name, leaf in state.items()} == {
        "buffer": ((4, 2, 3), "float32"),
        "idx": ((4,), "int32"),
    }
    net.delay_line = TIME_ORDERED
    assert sorted(net.initialize_state(4)) == ["buffer"]
    assert sorted(net(net.initialize_state(4), jp.ones((4, 3))).next_state) == ["buffer"]


def test_pytrees_keep_structure_and_dtypes() -> None:
    sample = {"x": jp.zeros((2,)), "n": [jp.zeros((), jp.int32), jp.zeros((), jp.bool_)]}
    net = Delay(sample, 2, initial_value=1.0)
    obs = {"x": jp.full((3, 2), 5.0), "n": [jp.full((3,), 7), jp.zeros((3,), jp.bool_)]}
    xs = jax.tree.map(lambda leaf: jp.stack([leaf] * 3), obs)
    _, outputs = rollout(net, xs, 3)
    assert jax.tree.structure(outputs[0]) == jax.tree.structure(obs)
    np.testing.assert_array_equal(outputs[1]["n"][0], [1, 1, 1])
    np.testing.assert_array_equal(outputs[1]["n"][1], [True, True, True])
    jax.tree.map(np.testing.assert_array_equal, outputs[2], obs)
    assert [leaf.dtype for leaf in jax.tree.leaves(outputs[2])] == [
        leaf.dtype for leaf in jax.tree.leaves(obs)
    ]


def test_reset_refills_with_and_without_a_batch_axis() -> None:
    net = Delay(jp.zeros(1), 3, initial_value=2.0)
    xs = jp.arange(4.0).reshape(4, 1, 1) * jp.ones((1, 2, 1))
    used, _ = rollout(net, xs, 4)
    np.testing.assert_array_equal(used["idx"], [1, 1])
    jax.tree.map(np.testing.assert_array_equal, net.reset_state(used), net.initialize_state(2))
    one = jax.vmap(net.reset_state)(used)
    jax.tree.map(np.testing.assert_array_equal, one, net.initialize_state(2))


def test_environments_reset_at_different_times_stay_independent() -> None:
    net = Delay(jp.zeros(()), 2)
    xs = jp.arange(1.0, 9.0)[:, None] * jp.asarray([[1.0, 10.0]])
    state, _ = rollout(net, xs[:3], 3)
    reset = net.reset_state(state)
    state = {
        name: leaf.at[0].set(reset[name][0]) for name, leaf in state.items()
    }  # only the first environment ended
    _, outputs = rollout(net, xs[3:], 4, state)
    np.testing.assert_array_equal(outputs, [[0.0, 20.0], [0.0, 30.0], [4.0, 40.0], [5.0, 50.0]])


def test_delay_inside_a_sequential_under_jit_and_scan() -> None:
    net = Sequential([Delay(jp.zeros(1), 2), Scale(10.0)])
    xs = jp.arange(1.0, 6.0).reshape(5, 1, 1)

    def step(carry: Any, x: jax.Array) -> Any:
        result = net(carry, x)
        return result.next_state, result.output

    _, outputs = jax.lax.scan(step, net.initialize_state(1), xs)
    np.testing.assert_array_equal(outputs.ravel(), [0.0, 0.0, 10.0, 20.0, 30.0])
    jitted = nnx.jit(lambda n, s, x: n(s, x))(net, net.initialize_state(1), xs[0])
    assert jitted.regularization_loss.shape == (1,)


def test_gradients_flow_through_time() -> None:
    net = Delay(jp.zeros(1), 2)

    def loss(xs: jax.Array) -> jax.Array:
        return jp.sum(rollout(net, xs, 4)[1][3] ** 2)

    gradient = jax.grad(loss)(jp.asarray([1.0, 3.0, 5.0, 7.0]).reshape(4, 1, 1))
    np.testing.assert_array_equal(gradient.ravel(), [0.0, 6.0, 0.0, 0.0])


@pytest.mark.parametrize("line", [RING, TIME_ORDERED], ids=repr)
def test_programs_trace_with_a_symbolic_batch(line: Any) -> None:
    (batch,) = export.symbolic_shape("b")
    net = Delay({"x": jp.zeros(3)}, 2)
    net.delay_line = line
    carry = net.initialize_state(1)
    args = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype),
        (carry, {"x": jp.zeros((1, 3))}),
    )
    exported = export.export(jax.jit(lambda s, x: net(s, x).output["x"]))(*args)
    assert str(exported.out_avals[0].shape) == "(b, 3)"


@pytest.mark.parametrize("k_steps", [0, -3])
def test_at_least_one_step_is_needed(k_steps: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got {k_steps}"):
        Delay(jp.zeros(1), k_steps)


def test_inputs_unlike_the_example_are_refused() -> None:
    net = Delay({"x": jp.zeros(3)}, 1)
    with pytest.raises(ValueError, match=r"missing leaves: \[.*x.*surplus leaves: \[.*y"):
        net(net.initialize_state(1), {"y": jp.zeros((1, 3))})
    with pytest.raises(ValueError, match=r"\['x'\] has shape \(1, 1\).*\(3,\)"):
        net(net.initialize_state(1), {"x": jp.zeros((1, 1))})


def test_a_carry_in_time_order_is_refused_by_a_ring() -> None:
    net = Delay(jp.zeros(1), 2)
    with pytest.raises(ValueError, match="time order"):
        net({"buffer": jp.zeros((1, 2, 1))}, jp.zeros((1, 1)))
