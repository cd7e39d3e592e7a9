import functools
import json

import jax
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import VideoConfig
from nnx_ppo.algorithms.errors import FactoryRecordError
from nnx_ppo.algorithms.factory_record import FactoryRecord, record_factory
from nnx_ppo.networks.factories import make_mlp_actor_critic

SIZES = {"obs_size": 3, "action_size": 2, "actor_hidden_sizes": [4], "critic_hidden_sizes": [5]}


def test_a_network_is_rebuilt_from_json_with_the_same_weights():
    record = record_factory(make_mlp_actor_critic, 7, **SIZES, activation=nnx.swish)
    assert record.factory == "nnx_ppo.networks.factories:make_mlp_actor_critic"
    assert record.arguments["activation"] == {"callable": "flax.nnx:silu"}
    restored = FactoryRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert restored == record

    built = nnx.state(restored.build(), nnx.Param)
    expected = make_mlp_actor_critic(**SIZES, activation=nnx.swish, rngs=nnx.Rngs(7))
    for a, b in zip(
        jax.tree.leaves(built), jax.tree.leaves(nnx.state(expected, nnx.Param)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_a_class_without_rngs_can_be_a_factory():
    assert record_factory(VideoConfig, enabled=True, every_steps=3).build() == VideoConfig(True, 3)


@pytest.mark.parametrize(
    "function, arguments, message",
    [
        (lambda rngs: rngs, {}, "cannot be imported by name"),
        (functools.partial(make_mlp_actor_critic, 3), {}, "cannot be imported by name"),
        (make_mlp_actor_critic, {"obs_size": 3}, "does not take these arguments"),
        (make_mlp_actor_critic, {**SIZES, "activation": lambda x: x}, "activation needs"),
        (make_mlp_actor_critic, {**SIZES, "rngs": nnx.Rngs(0)}, "leave out rngs"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_when_recorded(function, arguments, message):
    with pytest.raises(FactoryRecordError, match=message):
        record_factory(function, **arguments)


@pytest.mark.parametrize(
    "record, message",
    [
        (FactoryRecord("no_such_module:make", {}), "make that module importable"),
        (FactoryRecord("nnx_ppo.networks.factories:make_no_such", {}), "has no make_no_such"),
        (FactoryRecord("nnx_ppo.networks.types:ACTIVATION_KEY", {}), "not a function"),
        (FactoryRecord("nnx_ppo.networks.factories:make_mlp_actor_critic", {"x": 1}), "argument"),
        (FactoryRecord("os:system", {"command": "true"}), "no factory"),
    ],
)
def test_a_record_that_cannot_be_built_says_why(record, message):
    with pytest.raises(FactoryRecordError, match=message):
        record.build()


@pytest.mark.parametrize(
    "record",
    [{}, {"factory": 3, "arguments": {}, "seed": 0}, {"factory": "a:b", "arguments": {}}, []],
)
def test_json_that_is_no_record_is_refused(record):
    with pytest.raises(FactoryRecordError, match="not a factory record"):
        FactoryRecord.from_json(record)
