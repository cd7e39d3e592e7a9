import json
import re
import shutil

import jax
import jax.numpy as jp
import numpy as np
import pytest
import training_cases
from flax import nnx
from training_cases import PointEnv, State, make_lstm_networks, make_point_networks

from nnx_ppo.algorithms import checkpointing
from nnx_ppo.algorithms.checkpointing import (
    CheckpointCallback,
    CheckpointError,
    latest_checkpoint,
    load_checkpoint,
    load_network,
    make_checkpoint_fn,
    read_checkpoint_record,
)
from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.algorithms.factory_record import record_factory
from nnx_ppo.algorithms.optimizers import make_gradient_transformation
from nnx_ppo.algorithms.ppo import new_training_state
from nnx_ppo.algorithms.types import Transition
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.networks.types import PPONetworkOutput
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")
ENV = EpisodeWrapper(PointEnv(), 5)


def _state(seed=0, networks=None, **options):
    networks = make_point_networks(seed) if networks is None else networks
    return new_training_state(ENV, networks, 4, seed, **options)


def _plain(state):
    """A state whose environment states use only what can be recorded."""
    obs = {"arm": {"position": jp.arange(8.0).reshape(4, 2)}, "clock": jp.arange(4)}
    output = PPONetworkOutput(jp.ones((4, 1)), jp.zeros(4), jp.zeros(4))
    env_states = Transition(obs, output, jp.zeros(4), jp.zeros(4, bool), 3, obs, {"t": ()})
    return state.replace(env_states=env_states)


def _arrays(state):
    leaves = jax.tree.leaves(nnx.split(state)[1])
    return [
        jax.random.key_data(x) if jp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)
        for x in map(jp.asarray, leaves)
    ]


def _assert_equal(first, second):
    a, b = _arrays(first), _arrays(second)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def _load(path, env=None, networks=None, **options):
    networks = make_point_networks(9) if networks is None else networks
    transformation = make_gradient_transformation(1e-4, **options)
    optimizer = nnx.Optimizer(networks, transformation, wrt=nnx.Param)
    return load_checkpoint(path, networks, optimizer, env=env)


def test_a_training_state_comes_back_bit_for_bit(tmp_path):
    state = _plain(_state(gradient_clipping=1.0))
    state.networks.layers[0].counter[...] = jp.float32(12.0)
    state.networks.layers[1].action.layers[-1].rng()
    save = make_checkpoint_fn(tmp_path, TrainConfig(seed=4))
    assert isinstance(save, CheckpointCallback)
    save(state, step=1000)

    path = tmp_path / "step_0000001000"
    for name in ("networks", "optimizer"):
        assert (path / name).is_dir()
    assert (path / "metadata.pkl").read_text().startswith("Nothing here is pickled")
    restored = _load(path, gradient_clipping=1.0)
    assert restored["step"] == 1000
    assert type(restored["step"]) is int
    assert restored["config"] == TrainConfig(seed=4)
    _assert_equal(restored["training_state"], state)
    assert restored["training_state"].env_states.truncated == 3
    assert list(tmp_path.iterdir()) == [path]


def test_special_values_and_types_come_back(tmp_path):
    keys = jax.random.split(jax.random.key(3, impl="rbg"), 4)
    special = {
        "keys": keys,
        "last_z": jp.full((4, 2), jp.nan),
        "half": jp.arange(4, dtype=jp.bfloat16),
        "flags": jp.array([True, False, True, False]),
        "numpy": np.arange(4, dtype=np.int64),
        "empty": jp.zeros((4, 0)),
        "scalar": jp.int8(-3),
        "number": 0.5,
        "dots.in.keys": {"a.b": jp.zeros(4)},
        "dots": {"in": {"keys": {"a": {"b": jp.ones(4)}}}},
    }
    state = _plain(_state()).replace(network_states=special)
    make_checkpoint_fn(tmp_path)(state, 0)
    restored = _load(tmp_path / "step_0000000000")["training_state"].network_states
    _assert_equal(restored, special)
    assert restored["keys"].dtype == keys.dtype
    assert isinstance(restored["numpy"], np.ndarray)
    assert type(restored["number"]) is float
    assert bool(jp.isnan(restored["last_z"]).all())


def test_the_loaded_network_is_the_given_one_and_acts_as_the_saved_one(tmp_path):
    state = _plain(_state())
    make_checkpoint_fn(tmp_path)(state, 0)
    other = make_point_networks(8)
    optimizer = new_training_state(ENV, other, 4, 8).optimizer
    restored = load_checkpoint(tmp_path / "step_0000000000", other, optimizer)["training_state"]
    assert restored.networks is other
    assert restored.optimizer is optimizer
    obs = jp.zeros((2, 2))
    for networks in (other, state.networks):
        networks.eval()
    carry = other.initialize_state(2)
    first, second = other(carry, obs).output, state.networks(carry, obs).output
    np.testing.assert_array_equal(first.actions, second.actions)
    np.testing.assert_array_equal(first.value_estimates, second.value_estimates)


def test_a_class_that_is_gone_needs_the_environment(tmp_path, monkeypatch):
    state = _state()
    make_checkpoint_fn(tmp_path)(state, 5)
    path = tmp_path / "step_0000000005"
    with monkeypatch.context() as patch:
        patch.delattr(training_cases, "State")
        with pytest.raises(CheckpointError, match="training_cases:State cannot be .* env="):
            _load(path, networks=state.networks)
    _assert_equal(_load(path)["training_state"], state)
    _assert_equal(_load(path, env=ENV)["training_state"], state)


def test_a_local_class_of_environment_states_needs_the_environment(tmp_path):
    @jax.tree_util.register_pytree_node_class
    class LocalState(State):
        pass

    class LocalEnv(PointEnv):
        def reset(self, rng):
            fields = vars(super().reset(rng))
            return LocalState(**fields)

    env = LocalEnv()
    state = new_training_state(env, make_point_networks(), 4, 0)
    make_checkpoint_fn(tmp_path)(state, 5)
    path = tmp_path / "step_0000000005"
    with pytest.raises(CheckpointError, match="carry.safetensors.*LocalState.*pass.*env="):
        _load(path)
    _assert_equal(_load(path, env=env)["training_state"], state)
    assert read_checkpoint_record(path).observation.shape == (2,)


def test_a_local_class_of_the_networks_carry_is_found_through_the_network(tmp_path):
    @jax.tree_util.register_pytree_node_class
    class LocalCarry(State):
        pass

    class Networks(type(make_point_networks())):
        def initialize_state(self, batch_size):
            return LocalCarry(jp.zeros(batch_size), 0, 0, 0, super().initialize_state(batch_size))

    def make(seed):
        return Networks(make_point_networks(seed).layers)

    state = _plain(_state(networks=make(0)))
    make_checkpoint_fn(tmp_path)(state, 0)
    _assert_equal(_load(tmp_path / "step_0000000000", networks=make(1))["training_state"], state)


@pytest.mark.parametrize(
    "networks, options, message",
    [
        (lambda: make_point_networks(hidden=(8,)), {}, r"has shape \[2, 16\] in the checkpoint"),
        (lambda: make_point_networks(hidden=(16, 16)), {}, "the checkpoint lacks layers.1.action"),
        (make_lstm_networks, {}, "does not fit the given network"),
        (make_point_networks, {"gradient_clipping": 1.0}, "does not fit the given optimizer"),
    ],
)
def test_another_architecture_or_optimizer_is_refused_and_left_alone(
    tmp_path, networks, options, message
):
    make_checkpoint_fn(tmp_path)(_plain(_state()), 0)
    other = _state(3, networks(), **options)
    before = _arrays(other)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "step_0000000000", other.networks, other.optimizer)
    for a, b in zip(before, _arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_saving_over_a_step_replaces_it(tmp_path):
    save = make_checkpoint_fn(tmp_path)
    save(_plain(_state(0)), 7)
    second = _plain(_state(1))
    save(second, 7)
    assert [path.name for path in tmp_path.iterdir()] == ["step_0000000007"]
    _assert_equal(_load(tmp_path / "step_0000000007")["training_state"], second)


def test_checkpoints_accumulate_or_are_limited(tmp_path):
    state = _plain(_state())
    save = make_checkpoint_fn(tmp_path / "all")
    for step in (1, 2, 3):
        save(state, step)
    assert latest_checkpoint(tmp_path / "all") == tmp_path / "all" / "step_0000000003"
    assert len(list((tmp_path / "all").iterdir())) == 3

    limited = make_checkpoint_fn(tmp_path / "few", keep_last=2)
    for step in (5, 1, 2):  # a run that went back to an earlier step keeps what it writes now
        limited(state, step)
    names = sorted(path.name for path in (tmp_path / "few").iterdir())
    assert names == ["step_0000000001", "step_0000000002"]
    with pytest.raises(ValueError, match="keep_last=0"):
        make_checkpoint_fn(tmp_path, keep_last=0)


def test_the_directory_is_fixed_when_the_function_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save = make_checkpoint_fn("runs/a")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    save(_plain(_state()), 1)
    assert latest_checkpoint(tmp_path / "runs" / "a") is not None


def test_there_is_no_latest_checkpoint_where_there_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "missing") is None
    (tmp_path / "step_0000000001").mkdir()
    (tmp_path / ".step_0000000002.writing-host-1-ab").mkdir()
    (tmp_path / "step_3").mkdir()
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    "name",
    ["carry.safetensors", "networks/state.safetensors", "optimizer/state.safetensors"],
)
def test_damage_is_found_and_the_file_named(tmp_path, name):
    save = make_checkpoint_fn(tmp_path)
    save(_plain(_state()), 1)
    save(_plain(_state()), 2)
    path = tmp_path / "step_0000000002"
    data = bytearray((path / name).read_bytes())

    (path / name).write_bytes(data[:-3])
    with pytest.raises(CheckpointError, match=f"{re.escape(name)} is damaged: it has"):
        _load(path)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_0000000001"

    data[-1] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{re.escape(name)} is damaged or was altered"):
        _load(path)

    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{re.escape(name)} cannot be read"):
        _load(path)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_0000000001"


def _rewrite(path, change):
    document = json.loads((path / "metadata.json").read_text())
    change(document)
    (path / "metadata.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda path: (path / "metadata.json").unlink(), "it has no metadata.json"),
        (lambda path: (path / "metadata.json").write_text('{"form'), "metadata.json cannot be"),
        (lambda path: (path / "metadata.json").write_text("[]"), "not the metadata"),
        (
            lambda path: _rewrite(path, lambda d: d.update(format_version=2)),
            "has format version 2 but this version of nnx_ppo reads 1",
        ),
        (
            lambda path: _rewrite(path, lambda d: d["record"].update(step=8)),
            "metadata.json is damaged or was altered",
        ),
        (
            lambda path: _rewrite(
                path, lambda d: d.update(record={}, sha256=checkpointing_digest({}))
            ),
            "not as this format version has it",
        ),
        (shutil.rmtree, "is not a checkpoint"),
    ],
)
def test_damaged_metadata_is_refused(tmp_path, damage, message):
    make_checkpoint_fn(tmp_path)(_plain(_state()), 1)
    path = tmp_path / "step_0000000001"
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        _load(path)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint_record(path)
    assert latest_checkpoint(tmp_path) is None


def checkpointing_digest(record):
    from nnx_ppo.algorithms.checkpoint_format import metadata

    return metadata._digest(record)


def test_an_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    save = make_checkpoint_fn(tmp_path / "file")
    with pytest.raises(CheckpointError, match="step_0000000001 cannot be written"):
        save(_plain(_state()), 1)


def test_settings_that_cannot_be_written_are_refused_at_once(tmp_path):
    with pytest.raises(CheckpointError, match="config.*object"):
        make_checkpoint_fn(tmp_path, {"x": object()})


def test_only_training_states_are_saved(tmp_path):
    with pytest.raises(CheckpointError, match="cannot write a dict"):
        make_checkpoint_fn(tmp_path)({}, 1)
    state = _plain(_state()).replace(network_states={"name": "text"})
    with pytest.raises(CheckpointError, match=r"leaf \['name'\] is a str"):
        make_checkpoint_fn(tmp_path)(state, 1)
    assert list(tmp_path.iterdir()) == []


def _factory():
    return record_factory(
        make_mlp_actor_critic,
        obs_size=2,
        action_size=1,
        actor_hidden_sizes=[16],
        critic_hidden_sizes=[16],
    )


def test_a_network_is_loaded_alone_through_its_record(tmp_path):
    state = _plain(_state())
    state.networks.layers[0].mean[...] = jp.array([1.0, 2.0])
    make_checkpoint_fn(tmp_path, network_factory=_factory())(state, 1)
    path = tmp_path / "step_0000000001"
    shutil.rmtree(path / "optimizer")  # neither this nor the environment is needed
    (path / "carry.safetensors").unlink()

    network = load_network(path)
    _assert_equal(nnx.state(network), nnx.state(state.networks))
    given = make_point_networks(5)
    assert load_network(path, given) is given
    _assert_equal(nnx.state(given), nnx.state(state.networks))


def test_a_network_without_record_has_to_be_given(tmp_path):
    make_checkpoint_fn(tmp_path)(_plain(_state()), 1)
    with pytest.raises(CheckpointError, match="does not record how to build the network"):
        load_network(tmp_path / "step_0000000001")


def test_a_record_that_builds_no_network_is_refused(tmp_path):
    factory = record_factory(TrainConfig)
    make_checkpoint_fn(tmp_path, network_factory=factory)(_plain(_state()), 1)
    with pytest.raises(CheckpointError, match="TrainConfig made a TrainConfig"):
        load_network(tmp_path / "step_0000000001")


def test_a_checkpoint_says_what_it_is(tmp_path):
    factory = _factory()
    make_checkpoint_fn(
        tmp_path, {"note": (1, 2)}, network_factory=factory, environment_factory=factory
    )(_plain(_state()), 12)
    record = read_checkpoint_record(tmp_path / "step_0000000012")
    assert record.step == 12
    assert record.n_envs == 4
    assert record.config == {"note": (1, 2)}
    assert record.network_factory == factory
    assert record.environment_factory == factory
    assert record.versions["jax"] == jax.__version__
    assert record.observation == {
        "arm": {"position": jax.ShapeDtypeStruct((2,), jp.float32)},
        "clock": jax.ShapeDtypeStruct((), jp.int32),
    }


def test_settings_whose_class_is_gone_spoil_only_themselves(tmp_path):
    make_checkpoint_fn(tmp_path, TrainConfig())(_plain(_state()), 1)
    path = tmp_path / "step_0000000001"

    def rename(document):
        text = json.dumps(document["record"]).replace("config:TrainConfig", "config:Renamed")
        document["record"] = json.loads(text)
        document["sha256"] = checkpointing_digest(document["record"])

    _rewrite(path, rename)
    record = read_checkpoint_record(path)
    assert record.step == 1
    with pytest.raises(CheckpointError, match="metadata.json: config cannot be read"):
        _ = record.config


def test_the_module_offers_what_users_need():
    for name in checkpointing.__all__:
        assert getattr(checkpointing, name).__module__.startswith("nnx_ppo.algorithms")
