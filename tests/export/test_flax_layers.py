"""Every layer of Flax NNX that makes sense in a policy exports, and acts like the network."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from export import HiddenStateError, export_policy, verify_parity
from export.policy import FORMATS
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

VECTOR = np.zeros(6, np.float32)
SEQUENCE = np.zeros((5, 8), np.float32)
PICTURE = np.zeros((8, 8, 4), np.float32)


class Stateless(StatefulModule):
    """A policy whose action is one function of its layers and the observation."""

    def __init__(self, layer, function=None):
        self.layer = layer
        self.function = function

    def __call__(self, module_state, obs, rollout_extras=None):
        action = self.layer(obs) if self.function is None else self.function(self.layer, obs)
        action = jp.tanh(action.reshape(action.shape[0], -1))
        return StatefulModuleOutput(module_state, action, jp.array(0.0), {})


def assert_acts_like_the_network(network, observation, tmp_path, formats=("onnx",)):
    """Compare the format that most of our own code leads to, unless others are named too."""
    bundle = export_policy(network, observation, tmp_path / "policy", formats=formats)
    report = verify_parity(bundle, network, steps=12, batch_sizes=(1, 64), write=False)
    assert report.passed, [
        (comparison.runtime, comparison.batch_size, comparison.worst)
        for comparison in report.comparisons
        if not comparison.passed
    ]


def rngs():
    return nnx.Rngs(0)


def attend(layer, x):
    return layer(x, mask=nnx.make_causal_mask(x[..., 0]), decode=False)


LAYERS = {
    "linear": (lambda: nnx.Linear(6, 4, rngs=rngs()), VECTOR),
    "linear_general": (
        lambda: nnx.LinearGeneral((5, 8), (2, 3), axis=(-2, -1), rngs=rngs()),
        SEQUENCE,
    ),
    "einsum": (lambda: nnx.Einsum("bsf,fhd->bshd", (8, 2, 3), (2, 3), rngs=rngs()), SEQUENCE),
    "conv_1d": (lambda: nnx.Conv(8, 4, 3, padding="CAUSAL", rngs=rngs()), SEQUENCE),
    "conv_2d": (lambda: nnx.Conv(4, 6, (3, 3), 2, feature_group_count=2, rngs=rngs()), PICTURE),
    "conv_circular": (lambda: nnx.Conv(4, 6, (3, 3), padding="CIRCULAR", rngs=rngs()), PICTURE),
    "conv_transpose": (lambda: nnx.ConvTranspose(4, 2, (3, 3), 2, rngs=rngs()), PICTURE),
    "batch_norm": (lambda: nnx.BatchNorm(6, rngs=rngs()), VECTOR),
    "layer_norm": (lambda: nnx.LayerNorm(6, rngs=rngs()), VECTOR),
    "rms_norm": (lambda: nnx.RMSNorm(6, rngs=rngs()), VECTOR),
    "group_norm": (lambda: nnx.GroupNorm(4, 2, rngs=rngs()), PICTURE),
    "instance_norm": (lambda: nnx.InstanceNorm(4, rngs=rngs()), PICTURE),
    "dropout": (
        lambda: nnx.Sequential(nnx.Linear(6, 4, rngs=rngs()), nnx.Dropout(0.5, rngs=rngs())),
        VECTOR,
    ),
    "lora": (lambda: nnx.LoRA(6, 2, 4, rngs=rngs()), VECTOR),
    "lora_linear": (lambda: nnx.LoRALinear(6, 4, lora_rank=2, rngs=rngs()), VECTOR),
    "sequential": (
        lambda: nnx.Sequential(
            nnx.Linear(6, 8, rngs=rngs()), nnx.PReLU(), nnx.Linear(8, 2, rngs=rngs())
        ),
        VECTOR,
    ),
    "rnn": (lambda: nnx.RNN(nnx.GRUCell(8, 4, rngs=rngs())), SEQUENCE),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name, tmp_path):
    make, observation = LAYERS[name]
    assert_acts_like_the_network(Stateless(make()), observation, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_every_format(name, tmp_path):
    make, observation = LAYERS[name]
    assert_acts_like_the_network(Stateless(make()), observation, tmp_path, FORMATS)


@pytest.mark.parametrize(
    ("wrapper", "options"), [(nnx.WeightNorm, {}), (nnx.SpectralNorm, {"update_stats": False})]
)
def test_a_wrapper_that_rewrites_its_layers_weights_is_refused(wrapper, options, tmp_path):
    layer = wrapper(nnx.Linear(6, 4, rngs=rngs()), rngs=rngs())
    network = Stateless(layer, lambda layer, x: layer(x, **options))
    with pytest.raises(HiddenStateError, match="layer_instance.kernel"):
        export_policy(network, VECTOR, tmp_path / "policy")


def test_an_embedding_of_an_integer_observation(tmp_path):
    network = Stateless(nnx.Embed(10, 4, rngs=rngs()), lambda layer, x: layer(jp.clip(x, 0, 9)))
    assert_acts_like_the_network(network, np.zeros(3, np.int32), tmp_path)


def test_attention_with_a_causal_mask(tmp_path):
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs())
    assert_acts_like_the_network(Stateless(layer, attend), SEQUENCE, tmp_path)


class Recurrent(StatefulModule):
    """A cell whose carry is the policy's."""

    def __init__(self, cell):
        self.cell = cell

    def initialize_state(self, batch_size):
        return self.cell.initialize_carry((batch_size, 6), nnx.Rngs(0))

    def reset_state(self, prev_state):
        return jax.tree.map(jp.zeros_like, prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        carry, action = self.cell(module_state, obs)
        return StatefulModuleOutput(carry, action, jp.array(0.0), {})


@pytest.mark.parametrize("cell", [nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell])
def test_a_recurrent_cell(cell, tmp_path):
    assert_acts_like_the_network(Recurrent(cell(6, 5, rngs=rngs())), VECTOR, tmp_path)


def test_a_picture_of_bytes_with_pooling(tmp_path):
    def see(layer, picture):
        seen = nnx.relu(layer(picture.astype(jp.float32) / 255))
        # Flax's mean divides float32 by an int32, which strict promotion does not allow.
        with jax.numpy_dtype_promotion("standard"):
            mean = nnx.avg_pool(seen, (2, 2), (2, 2))
        return nnx.max_pool(seen, (2, 2), (2, 2)) + mean

    network = Stateless(nnx.Conv(3, 4, (3, 3), rngs=rngs()), see)
    assert_acts_like_the_network(network, np.zeros((8, 8, 3), np.uint8), tmp_path)


class History(StatefulModule):
    """A layer over the last observations."""

    def __init__(self):
        self.layer = nnx.Linear(4 * 6, 2, rngs=rngs())

    def initialize_state(self, batch_size):
        return jp.zeros((batch_size, 4, 6))

    def reset_state(self, prev_state):
        return jp.zeros_like(prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        window = jp.concatenate([module_state[:, 1:], obs[:, None]], axis=1)
        action = self.layer(window.reshape(window.shape[0], -1))
        return StatefulModuleOutput(window, action, jp.array(0.0), {})


class Transformer(StatefulModule):
    """One block of attention over a rolling cache of the last keys and values."""

    def __init__(self, length=4):
        self.length = length
        self.embed = nnx.Linear(6, 8, rngs=nnx.Rngs(1))
        self.project = nnx.LinearGeneral(8, (3, 2, 4), rngs=nnx.Rngs(2))
        self.norm = nnx.LayerNorm(8, rngs=nnx.Rngs(3))
        self.out = nnx.LinearGeneral((2, 4), 8, axis=(-2, -1), rngs=nnx.Rngs(4))
        self.head = nnx.Linear(8, 2, rngs=nnx.Rngs(5))

    def initialize_state(self, batch_size):
        cache = jp.zeros((batch_size, self.length, 2, 4))
        return {"keys": cache, "values": cache, "filled": jp.zeros((batch_size,), jp.int32)}

    def reset_state(self, prev_state):
        return jax.tree.map(jp.zeros_like, prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        hidden = self.embed(obs)
        query, key, value = jp.moveaxis(self.project(self.norm(hidden)), 1, 0)
        keys = jp.concatenate([module_state["keys"][:, 1:], key[:, None]], axis=1)
        values = jp.concatenate([module_state["values"][:, 1:], value[:, None]], axis=1)
        filled = jp.minimum(module_state["filled"] + 1, self.length)
        mask = jp.arange(self.length) >= self.length - filled[:, None]
        attended = nnx.dot_product_attention(
            query[:, None], keys, values, mask=mask[:, None, None, :], deterministic=True
        )
        hidden = hidden + self.out(attended[:, 0])
        state = {"keys": keys, "values": values, "filled": filled}
        return StatefulModuleOutput(state, self.head(hidden), jp.array(0.0), {})


@pytest.mark.parametrize("network", [History, Transformer])
def test_a_policy_that_remembers_what_it_saw(network, tmp_path):
    assert_acts_like_the_network(network(), VECTOR, tmp_path)


def test_experts_of_which_a_switch_takes_one(tmp_path):
    experts = nnx.List([nnx.Linear(6, 2, rngs=nnx.Rngs(seed)) for seed in range(3)])

    def choose(experts, x):
        def one(row):
            index = jp.argmax(row[:3])
            return lax.switch(index, [lambda r, e=e: e(r) for e in experts], row)

        return jax.vmap(one)(x)

    assert_acts_like_the_network(Stateless(experts, choose), VECTOR, tmp_path)


class Wrapped(StatefulModule):
    """An Equinox module: its arrays become a Variable, its structure stays as it is."""

    def __init__(self, module):
        arrays, self.static = eqx.partition(module, eqx.is_array)
        leaves, self.treedef = jax.tree.flatten(arrays)
        self.arrays = nnx.List([nnx.Param(leaf) for leaf in leaves])

    def __call__(self, module_state, obs, rollout_extras=None):
        leaves = [array[...] for array in self.arrays]
        module = eqx.combine(jax.tree.unflatten(self.treedef, leaves), self.static)
        return StatefulModuleOutput(module_state, jax.vmap(module)(obs), jp.array(0.0), {})


def test_an_equinox_module(tmp_path):
    module = eqx.nn.MLP(6, 2, 16, 2, key=jax.random.key(0))
    assert_acts_like_the_network(Wrapped(module), VECTOR, tmp_path)


@pytest.mark.parametrize("dtype", [jp.float16, jp.bfloat16])
def test_half_precision_layers_say_so_in_the_manifest(dtype, tmp_path):
    layers = nnx.Sequential(
        nnx.Linear(6, 16, dtype=dtype, param_dtype=dtype, rngs=rngs()),
        nnx.tanh,
        nnx.Linear(16, 2, dtype=dtype, param_dtype=dtype, rngs=rngs()),
    )
    network = Stateless(layers, lambda layers, x: layers(x).astype(jp.float32))
    assert_acts_like_the_network(network, VECTOR, tmp_path)
    bundle = export_policy(network, VECTOR, tmp_path / "again")
    for name, artefact in bundle.manifest.artefacts.items():
        computed = artefact.details.get(jp.dtype(dtype).name)
        assert (computed is not None and "float32" in str(computed)) == (
            name in ("onnx", "saved_model")
        )
        assert artefact.details["parity_bound"] == 4 * float(jp.finfo(dtype).eps)
