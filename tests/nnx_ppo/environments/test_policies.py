import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.factory_record import record_factory
from nnx_ppo.algorithms.rollout import unroll_env
from nnx_ppo.environments import TwoArm, make_environment
from nnx_ppo.environments.policies import (
    make_delayed_graph_policy,
    make_memoryless_policy,
    make_motion_graph,
    make_two_arm_policy,
)
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.recording import extract_activations, with_recording

FACTORIES = {
    "swing_up_delayed": make_delayed_graph_policy,
    "two_arm": make_two_arm_policy,
}


def n_weights(module: nnx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


def test_the_memoryless_policy_is_of_the_graphs_size() -> None:
    graph = make_delayed_graph_policy(4, 1, nnx.Rngs(0))
    memoryless = make_memoryless_policy(4, 1, nnx.Rngs(0))
    for part in ("action", "value"):
        sizes = [n_weights(getattr(net.layers[1], part)) for net in (memoryless, graph)]
        assert 1.0 <= sizes[0] / sizes[1] < 1.05
    assert jax.tree.leaves(memoryless.initialize_state(3)) == []


def test_the_graph_has_a_self_connection_and_delays_of_one_to_three_steps() -> None:
    policy = make_delayed_graph_policy(4, 1, nnx.Rngs(0))
    graphs = [m for _, m in nnx.iter_modules(policy) if isinstance(m, PopulationGraph)]
    assert len(graphs) == 2
    for graph in graphs:
        edges = [(edge.src, edge.dst, edge.delay) for edge in graph.connections]
        assert ("hidden", "hidden", 1) in edges
        assert {("sensors", "motion", delay) for delay in range(4)} <= set(edges)


def test_what_rests_is_no_motion_at_first() -> None:
    graph = with_recording(make_motion_graph(4, 2, nnx.Rngs(1), hidden_size=8, sensor_features=16))

    def motion_after(readings: list[float]) -> np.ndarray:
        carry = graph.initialize_state(1)
        for reading in readings:
            out = graph(carry, {"sensors": jp.full((1, 4), reading)})
            carry = out.next_state
        return np.asarray(extract_activations(out.metrics)["motion"])

    np.testing.assert_allclose(motion_after([0.7] * 4), 0.0, atol=1e-5)
    assert np.max(np.abs(motion_after([0.4, 0.5, 0.6, 0.7]))) > 0.05


@pytest.mark.parametrize("name", FACTORIES)
def test_policies_act_in_their_environment(name: str) -> None:
    env = make_environment(name)
    network = FACTORIES[name](env.observation_size, env.action_size, nnx.Rngs(0))
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4))
    carry = network.initialize_state(4)
    unroll = nnx.jit(unroll_env, static_argnums=(0, 4))
    _, _, rollout = unroll(env, states, network, carry, 5, jax.random.key(1))
    # A reward, and so an advantage, for each head.
    output = rollout.network_output
    structures = {jax.tree.structure(t) for t in (rollout.rewards, output.loglikelihoods)}
    assert structures == {jax.tree.structure(output.value_estimates)}
    assert {leaf.shape for leaf in jax.tree.leaves(rollout.rewards)} == {(5, 4)}
    assert all(bool(jp.all(jp.isfinite(leaf))) for leaf in jax.tree.leaves(output))


def test_each_arm_acts_on_itself_and_what_both_share() -> None:
    env = TwoArm()
    policy = make_two_arm_policy(env.observation_size, env.action_size, nnx.Rngs(0))
    policy.eval()
    state = env.reset(jax.random.key(0))
    obs = jax.tree.map(lambda leaf: leaf[None], state.obs)

    def outputs(obs):
        return policy(policy.initialize_state(1), obs).output

    usual = outputs(obs)
    assert {arm: action.shape for arm, action in usual.actions.items()} == {
        "arm_L": (1, 2),
        "arm_R": (1, 2),
    }
    other_right = {**obs, "arm_R": jax.tree.map(lambda leaf: leaf + 1.0, obs["arm_R"])}
    moved = outputs(other_right)
    np.testing.assert_array_equal(
        np.asarray(moved.actions["arm_L"]), np.asarray(usual.actions["arm_L"])
    )
    assert float(jp.max(jp.abs(moved.actions["arm_R"] - usual.actions["arm_R"]))) > 1e-4
    # The critic sees both arms.
    assert float(moved.value_estimates["arm_L"][0]) != float(usual.value_estimates["arm_L"][0])


@pytest.mark.parametrize("name", FACTORIES)
def test_records_rebuild_the_same_network(name: str) -> None:
    env = make_environment(name)
    record = record_factory(
        FACTORIES[name], 5, observation_size=env.observation_size, action_size=env.action_size
    )
    first, second = record.build(), record.build()
    jax.tree.map(
        np.testing.assert_array_equal,
        nnx.to_pure_dict(nnx.state(first, nnx.Param)),
        nnx.to_pure_dict(nnx.state(second, nnx.Param)),
    )
