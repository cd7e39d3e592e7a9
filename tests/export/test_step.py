"""The exported step keeps what the action needs, and nothing else; the network stays as it is."""

from __future__ import annotations

import abc
import collections
import dataclasses
import math

import export_networks
import jax
import jax.numpy as jp
import numpy as np
import onnx
import pytest
from flax import nnx

from export import (
    ExportError,
    HiddenStateError,
    NetworkError,
    ObservationSpecError,
    RandomnessError,
    UnsupportedOperationError,
    export_policy,
)
from export.prng_keys import without_key_type
from export.step import build_step
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from serving import load_policy

OBS = np.zeros(4, np.float32)


class Policy(StatefulModule):
    """Base of the small networks below; subclasses say what one step computes."""

    @abc.abstractmethod
    def compute(self, state, obs) -> tuple: ...

    def __call__(self, module_state, obs, rollout_extras=None):
        state, action = self.compute(module_state, obs)
        return StatefulModuleOutput(state, action, jp.array(0.0), {})


def variables(network):
    """Every array and static attribute, in a form that compares bit for bit."""
    graphdef, state = nnx.split(network)
    arrays = []
    for leaf in jax.tree.leaves(state):
        arrays.append(np.asarray(without_key_type(leaf)).tobytes())
    return graphdef, arrays


def modes(network):
    found = [getattr(m, "deterministic", None) for _, m in nnx.iter_modules(network)]
    return [mode for mode in found if mode is not None]


@pytest.mark.parametrize("name", ["ar1", "population_graph", "two_arm"])
def test_the_network_is_bit_for_bit_what_it_was(tmp_path, name):
    network, observation = export_networks.make(name)
    before, training = variables(network), modes(network)
    assert training and not any(training)
    export_policy(network, observation, tmp_path / "policy", formats=["stablehlo"])
    assert variables(network) == before and modes(network) == training


class Unlowerable(Policy):
    def __init__(self, rngs):
        self.layer = nnx.Linear(4, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def compute(self, state, x):
        y = self.dropout(self.layer(x))
        return state, y + jax.lax.linalg.cholesky(y[:, :, None] * y[:, None, :])[:, 0]


def test_a_failing_export_leaves_network_and_directory_as_they_were(tmp_path):
    network = Unlowerable(nnx.Rngs(0))
    before = variables(network)
    with pytest.raises(UnsupportedOperationError) as caught:
        export_policy(network, OBS, tmp_path / "new" / "policy")
    error = caught.value
    assert error.primitive == "cholesky"
    assert error.module_path == "network"
    assert "test_step.py:" in error.source and "compute" in error.source
    assert "stablehlo" in str(error)
    assert variables(network) == before and not network.dropout.deterministic
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_rule_still_exports_to_the_formats_that_need_none(tmp_path):
    bundle = export_policy(
        Unlowerable(nnx.Rngs(0)),
        OBS,
        tmp_path / "policy",
        formats=["stablehlo", "saved_model"],
        saved_model_flavours=["xla"],
    )
    assert sorted(bundle.manifest.artefacts) == ["saved_model_xla", "stablehlo"]


def parameters_of(bundle):
    """Count numbers stored in each artefact's graph, by artefact."""
    from tensorflow.core.protobuf import saved_model_pb2

    counts = {}
    model = onnx.load(bundle.artefact_path("onnx"))
    counts["onnx"] = sum(int(np.prod(t.dims)) for t in model.graph.initializer)
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((bundle.artefact_path("saved_model") / "saved_model.pb").read_bytes())
    counts["saved_model"] = 0
    for function in proto.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "Const" and node.attr["dtype"].type == 1:
                sizes = [d.size for d in node.attr["value"].tensor.tensor_shape.dim]
                counts["saved_model"] += int(np.prod(sizes))
    for key in ("stablehlo", "saved_model_xla"):
        path = bundle.artefact_path(key)
        size = path.stat().st_size if path.is_file() else (path / "saved_model.pb").stat().st_size
        counts[key] = size // 4
    return counts


def test_a_critics_lstm_leaves_neither_carry_nor_weights(exported):
    case = exported("critic_lstm")
    manifest = case.bundle.manifest
    assert manifest.carry_ports == [] and case.bundle.initial_carry == {}
    assert {leaf.source for leaf in manifest.network_carry.leaves} == {"dropped"}
    actor = 8 + 8 + (8 * 16 + 16) + (16 * 4 + 4)  # statistics, two layers
    critic = 40 * 4 * (8 + 40 + 1)
    counts = parameters_of(case.bundle)
    assert actor - 36 - 20 <= counts["onnx"] <= actor + 8
    assert counts["saved_model"] <= actor + 16
    # Files of serialized programs hold more than weights, but not as much as the critic alone.
    assert counts["stablehlo"] < critic and counts["saved_model_xla"] < critic


def test_bottleneck_keys_do_not_travel_but_the_actors_memory_does(exported):
    manifest = exported("ar1").bundle.manifest
    assert [port.name for port in manifest.carry_ports] == [
        "carry.1.action.0.0",
        "carry.1.action.0.1",
    ]
    impls = [leaf.key_impl for leaf in manifest.network_carry.leaves if leaf.key_impl]
    assert impls == ["threefry2x32"]


def test_one_delay_buffer_has_its_own_port_and_no_pointer(exported):
    manifest = exported("delay").bundle.manifest
    assert [port.kind for port in manifest.carry_ports] == ["delay_buffer"]
    sources = collections.Counter(leaf.source for leaf in manifest.network_carry.leaves)
    assert sources["delay_buffer"] == sources["delay_pointer"] == 1


def test_several_delay_buffers_are_packed_and_every_slot_has_its_place(exported):
    manifest = exported("population_graph").bundle.manifest
    packed = [port for port in manifest.carry_ports if port.kind == "packed_delays"]
    assert [(port.name, port.next_name) for port in packed] == [
        ("carry.delays", "next_carry.delays")
    ]
    leaves = manifest.network_carry.leaves
    sources = collections.Counter(leaf.source for leaf in leaves)
    assert sources == {"delay_buffer": 3, "delay_pointer": 3, "exported": 2}
    buffers = [leaf for leaf in leaves if leaf.source == "delay_buffer"]
    columns = sorted(
        column
        for leaf in buffers
        for first in leaf.slots
        for column in range(first, first + math.prod(leaf.shape[1:]))
    )
    assert columns == list(range(packed[0].shape[0]))
    assert all(leaf.port == "carry.delays" for leaf in buffers)


def test_an_observation_that_only_the_critic_reads_is_not_an_input(exported):
    case = exported("two_arm")
    names = [port.name for port in case.bundle.manifest.observation_ports]
    assert "obs.critic_only" not in names and "obs.arm_L.proprioception" in names
    session = load_policy(case.bundle).session()
    complete = session.step(case.observation)
    session.reset()
    without = {k: v for k, v in case.observation.items() if k != "critic_only"}
    for arm, values in session.step(without).items():
        np.testing.assert_array_equal(values, complete[arm])


def test_the_onnx_file_is_standard_and_passes_the_full_check(exported):
    for name in ("population_graph", "two_arm", "user_module"):
        model = onnx.load(exported(name).bundle.artefact_path("onnx"))
        onnx.checker.check_model(model, full_check=True)
        assert [entry.domain for entry in model.opset_import] == [""]
        assert all(node.domain == "" for node in model.graph.node)
        assert not any(node.op_type.startswith("Random") for node in model.graph.node)
        inputs = [value.name for value in model.graph.input]
        manifest = exported(name).bundle.manifest
        ports = [*manifest.carry_ports, *manifest.observation_ports]
        assert inputs == [port.name for port in ports]
        assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_value_can_be_exported_as_an_extra_output(tmp_path):
    network, observation = export_networks.make("critic_lstm")
    bundle = export_policy(
        network, observation, tmp_path / "policy", formats=["onnx"], extra_outputs=("value",)
    )
    assert [port.name for port in bundle.manifest.extra_output_ports] == ["value"]
    assert len(bundle.manifest.carry_ports) == 2  # the critic's memory matters now
    session = load_policy(bundle).session()
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    session.step(x)
    copy = nnx.clone(network)
    copy.eval()
    expected = copy(copy.initialize_state(1), x[None]).output.value_estimates
    np.testing.assert_allclose(session.extra_outputs["value"], expected[0], atol=1e-5)


Reading = collections.namedtuple("Reading", ["position", "rate"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Sensors:
    joints: list
    contact: np.ndarray
    pair: tuple


def odd_tree():
    return Sensors(
        joints=[
            Reading(np.float32(0.5), np.zeros(2, np.float32)),
            {"a.b": np.zeros(3, np.float32)},
        ],
        contact=np.array([True, False]),
        pair=(np.int32(1), None),
    )


class OddTree(Policy):
    def compute(self, state, obs):
        reading, other = obs.joints
        force = jp.where(obs.contact, reading.rate, -reading.rate)
        gain = obs.pair[0].astype(jp.float32)[:, None]
        return state, Reading(
            position=[force * gain, {"x": other["a.b"].sum(-1)}], rate=reading.position
        )


def test_any_tree_of_containers_and_dtypes_works(tmp_path):
    network = OddTree()
    bundle = export_policy(network, odd_tree(), tmp_path / "policy")
    assert [port.name for port in bundle.manifest.observation_ports] == [
        "obs.joints.0.position",
        "obs.joints.0.rate",
        "obs.joints.1.a_b",
        "obs.contact",
        "obs.pair.0",
    ]
    for runtime in bundle.manifest.artefacts:
        action = load_policy(bundle, runtime=runtime).session().step(odd_tree())
        assert action.rate == np.float32(0.5)
        np.testing.assert_array_equal(action.position[0], np.zeros(2))
        assert action.position[1]["x"].shape == ()


class Noisy(Policy):
    def __init__(self, rngs):
        self.inner = nnx.List([nnx.Linear(4, 4, rngs=rngs), NoiseLayer(rngs)])

    def compute(self, state, x):
        return state, self.inner[1](self.inner[0](x))


class NoiseLayer(nnx.Module):
    def __init__(self, rngs):
        self.rngs = rngs

    def __call__(self, x):
        return x + jax.random.normal(self.rngs(), x.shape)


def test_a_network_that_samples_in_eval_is_refused_by_module_and_line(tmp_path):
    with pytest.raises(RandomnessError, match=r"module 'inner\.1' draws.*test_step\.py:\d+"):
        export_policy(Noisy(nnx.Rngs(0)), OBS, tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


class KeyInCarry(Policy):
    def initialize_state(self, batch_size):
        return jax.random.split(jax.random.key(0), batch_size)

    def compute(self, state, x):
        return state, x + jax.vmap(lambda k: jax.random.normal(k, (4,)))(state)


def test_noise_from_a_key_in_the_carry_is_refused():
    with pytest.raises(RandomnessError, match="random"):
        build_step(KeyInCarry(), OBS)


class HiddenTrace(Policy):
    def __init__(self):
        self.trace = nnx.Variable(jp.zeros((4,)))

    def compute(self, state, x):
        self.trace[...] = 0.9 * self.trace[...] + x.mean(0)
        return state, x + self.trace[...]


def test_memory_kept_in_a_variable_is_refused_with_its_name():
    with pytest.raises(HiddenStateError, match="'trace'"):
        build_step(HiddenTrace(), OBS)


class Counter(Policy):
    def __init__(self):
        self.calls = nnx.Variable(jp.zeros((), jp.int32))

    def compute(self, state, x):
        self.calls[...] += 1
        return state, 2.0 * x


def test_a_variable_that_does_not_influence_the_action_may_change():
    assert build_step(Counter(), OBS).carry_ports == []


class NeverReset(Policy):
    """Keeps its memory over episodes, as a module without reset_state does."""

    def initialize_state(self, batch_size):
        return jp.zeros((batch_size, 4))

    def compute(self, state, x):
        state = state + x
        return state, state


def test_a_carry_that_reset_leaves_alone_is_kept_over_resets(tmp_path):
    bundle = export_policy(NeverReset(), OBS, tmp_path / "policy", formats=["onnx"])
    assert bundle.manifest.carry_ports[0].reset == "keep"
    session = load_policy(bundle).session()
    session.step(np.ones(4, np.float32))
    session.reset()
    np.testing.assert_array_equal(session.step(np.ones(4, np.float32)), np.full(4, 2.0))


class OddReset(NeverReset):
    def reset_state(self, prev_state):
        return prev_state * 0.5


class GrowingCarry(NeverReset):
    def compute(self, state, x):
        return jp.concatenate([state, x], axis=-1), x


class UnbatchedCarry(NeverReset):
    def initialize_state(self, batch_size):
        return jp.zeros((4,))


class BranchesOnValues(Policy):
    def compute(self, state, x):
        return state, x if x.sum() > 0 else -x


class BranchesOnBatch(Policy):
    def compute(self, state, x):
        return state, x * 2.0 if x.shape[0] > 2 else x


class MissingKey(Policy):
    def compute(self, state, x):
        return state, x["velocity"]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (OddReset(), "reset_state sets carry neither"),
        (GrowingCarry(), r"carry is float32.* before a step"),
        (UnbatchedCarry(), "must lead with the batch axis"),
        (BranchesOnValues(), "jax.lax.cond"),
        (BranchesOnBatch(), "batch_size=N"),
        (MissingKey(), "calling the network failed"),
        (lambda carry, obs: None, "expected a network"),
    ],
)
def test_networks_that_are_no_step_are_refused_with_what_to_change(network, message):
    with pytest.raises(NetworkError, match=message):
        build_step(network, OBS)


def test_a_network_that_branches_on_the_batch_exports_at_a_fixed_one(tmp_path):
    bundle = export_policy(
        BranchesOnBatch(), OBS, tmp_path / "policy", batch_size=3, formats=["onnx"]
    )
    action = load_policy(bundle).session(batch_size=3).step(np.ones((3, 4), np.float32))
    np.testing.assert_array_equal(action, np.full((3, 4), 2.0))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({}, "no leaves"),
        ({"camera": "front"}, "not numeric"),
        ({"z": np.zeros(2, np.complex64)}, "complex64"),
    ],
)
def test_observations_that_are_no_numbers_are_refused(observation, message):
    with pytest.raises(ObservationSpecError, match=message):
        build_step(Counter(), observation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": ["tflite"]}, "formats must be"),
        ({"formats": "onnx"}, "formats must be"),
        ({"saved_model_flavours": ["fast"]}, "saved_model_flavours"),
        ({"control_rate_hz": -5.0}, "control_rate_hz"),
        ({"batch_size": 0}, "batch_size"),
        ({"extra_outputs": ("entropy",)}, "entropy"),
    ],
)
def test_choices_that_do_not_exist_are_refused(tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export_policy(Counter(), OBS, tmp_path / "policy", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_float64_example_is_taken_as_the_float32_that_jax_makes_of_it():
    step = build_step(Counter(), np.zeros(4))
    assert step.observation_ports[0].dtype == "float32"
