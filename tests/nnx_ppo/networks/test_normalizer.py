"""Tests of observation normalization against statistics computed by NumPy."""

import types
from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.normalizer import MAX_REMEMBERED_BATCHES, Normalizer, NormalizerStatistics

Sensors = namedtuple("Sensors", ["gyro", "force"])


def test_statistics_have_the_shape_given() -> None:
    for shape, expected in [(10, (10,)), ((5, 3), (5, 3)), ([2], (2,)), (np.int64(4), (4,))]:
        normalizer = Normalizer(shape)
        assert normalizer.mean[...].shape == expected
        assert normalizer.M2.get_value().shape == expected
        assert normalizer.counter[...].shape == ()
        assert normalizer.counter[...].dtype == jp.float32
    assert isinstance(normalizer.mean, NormalizerStatistics)


def test_before_any_data_the_input_is_divided_by_ten() -> None:
    normalizer = Normalizer(3)
    x = jp.asarray([[1.0, -20.0, 0.5]])
    result = normalizer((), x)
    np.testing.assert_array_equal(result.output, x / 10.0)
    np.testing.assert_array_equal(result.rollout_extras, x)
    assert (result.next_state, result.metrics) == ((), {})
    assert float(result.regularization_loss) == 0.0


def test_statistics_match_numpy_over_several_uneven_batches() -> None:
    random = np.random.default_rng(0)
    normalizer = Normalizer(4)
    batches = [random.normal(3.0, 2.0, (t, b, 4)).astype(np.float32) for t, b in [(5, 7), (1, 3)]]
    batches.append(100.0 + random.normal(0.0, 0.1, (20, 10, 4)).astype(np.float32))
    for batch in batches:
        normalizer.update_statistics(jp.asarray(batch))
    data = np.concatenate([batch.reshape(-1, 4) for batch in batches]).astype(np.float64)
    assert float(normalizer.counter[...]) == len(data)
    np.testing.assert_allclose(normalizer.mean[...], data.mean(axis=0), rtol=1e-5)
    std = np.sqrt(normalizer.M2[...] / normalizer.counter[...])
    np.testing.assert_allclose(std, data.std(axis=0), rtol=1e-5)
    output = normalizer((), jp.asarray(batches[0][0])).output
    expected = (batches[0][0] - data.mean(axis=0)) / data.std(axis=0)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_a_constant_feature_is_divided_by_the_floor() -> None:
    normalizer = Normalizer(3)
    normalizer.update_statistics(jp.ones((1, 4, 3)) * 5)
    np.testing.assert_allclose(normalizer.mean[...], [5.0, 5.0, 5.0])
    output = normalizer((), jp.full((1, 3), 5.001)).output
    np.testing.assert_allclose(output, [[1.0, 1.0, 1.0]], atol=1e-3)


def test_calls_never_change_statistics_and_ignore_extras() -> None:
    normalizer = Normalizer(2)
    normalizer.update_statistics(jp.arange(8.0).reshape(2, 2, 2))
    before = nnx.to_pure_dict(nnx.state(normalizer))
    x = jp.ones((3, 2))
    result = normalizer((), x, jp.full((3, 2), 7.0))
    np.testing.assert_array_equal(result.rollout_extras, x)
    np.testing.assert_array_equal(result.output, normalizer((), x).output)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.to_pure_dict(nnx.state(normalizer)))


def test_statistics_can_be_read_and_assigned() -> None:
    normalizer = Normalizer(2)
    normalizer.mean[...] = jp.asarray([1.0, 2.0])
    normalizer.M2[...] = jp.asarray([16.0, 36.0])
    normalizer.counter[...] = jp.asarray(4.0)
    np.testing.assert_allclose(normalizer((), jp.asarray([[3.0, 5.0]])).output, [[1.0, 1.0]])


def test_updates_happen_in_place_under_jit() -> None:
    normalizer = Normalizer(2)
    nnx.jit(lambda n, x: n.update_statistics(x))(normalizer, jp.ones((3, 5, 2)))
    assert float(normalizer.counter[...]) == 15.0
    np.testing.assert_allclose(normalizer.mean[...], [1.0, 1.0])


def test_structured_sizes_may_mix_ints_and_shapes() -> None:
    shape = {"goal": 4, "image": (2, 3), "arm": Sensors(gyro=3, force=(1,)), "legs": [[2], (2,)]}
    normalizer = Normalizer(shape)
    shapes = jax.tree.map(jp.shape, normalizer.mean.get_value())
    assert shapes["goal"] == (4,)
    assert shapes["image"] == (2, 3)
    assert shapes["arm"] == Sensors(gyro=(3,), force=(1,))
    obs = jax.tree.map(lambda mean: jp.full((2, *mean.shape), 5.0), normalizer.mean.get_value())
    output = normalizer((), obs).output
    assert isinstance(output["arm"], Sensors)
    assert isinstance(output["legs"], list)
    for leaf in jax.tree.leaves(output):
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 0.5))
    normalizer.update_statistics(jax.tree.map(lambda x: x[None], obs))
    assert float(normalizer.counter[...]) == 2.0
    for leaf in jax.tree.leaves(normalizer((), obs).output):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_mappings_become_plain_dicts() -> None:
    normalizer = Normalizer(types.MappingProxyType({"x": (3,)}))
    obs = types.MappingProxyType({"x": jp.ones((2, 3))})
    result = normalizer((), obs)
    assert type(result.output) is dict
    assert type(result.rollout_extras) is dict
    np.testing.assert_array_equal(result.output["x"], np.full((2, 3), 0.1, np.float32))


def test_structured_normalizers_survive_jit() -> None:
    normalizer = Normalizer({"b": 2, "a": (1,)})
    obs = {"a": jp.ones((3, 1)), "b": jp.zeros((3, 2))}
    output = nnx.jit(lambda n, x: n((), x).output)(normalizer, obs)
    np.testing.assert_allclose(output["a"], np.full((3, 1), 0.1))


def test_counts_and_flags_are_normalized_as_floats() -> None:
    normalizer = Normalizer({"count": 1, "flag": 1})
    obs = {"count": jp.asarray([[20]]), "flag": jp.asarray([[True]])}
    result = normalizer((), obs)
    np.testing.assert_allclose(result.output["count"], [[2.0]])
    np.testing.assert_allclose(result.output["flag"], [[0.1]])
    normalizer.update_statistics(jax.tree.map(lambda x: x[None], obs))
    np.testing.assert_allclose(normalizer.mean.get_value()["count"], [20.0])


def test_structure_errors_name_the_leaf() -> None:
    normalizer = Normalizer({"arm": {"gyro": 3}, "goal": 2})
    with pytest.raises(ValueError, match=r"missing leaves: \[.*gyro.*surplus leaves: \[.*touch"):
        normalizer((), {"arm": {"touch": jp.zeros((1, 3))}, "goal": jp.zeros((1, 2))})
    with pytest.raises(ValueError, match=r"\['goal'\] has shape \(1, 5\), expected \(batch, 2\)"):
        normalizer((), {"arm": {"gyro": jp.zeros((1, 3))}, "goal": jp.zeros((1, 5))})
    with pytest.raises(ValueError, match="update_statistics"):
        normalizer.update_statistics({"goal": jp.zeros((1, 1, 2))})


@pytest.mark.parametrize("shape", ["abc", {"x": 1.5}, {"x": (3, "y")}])
def test_other_sizes_are_refused(shape: Any) -> None:
    with pytest.raises(TypeError, match="expected an int"):
        Normalizer(shape)


def test_statistics_stay_consistent_when_float32_cannot_count_any_further() -> None:
    """Without forgetting, M2 would grow while the counter stood still."""
    normalizer = Normalizer(1)
    huge = 2.0**40
    normalizer.counter[...] = jp.asarray(huge)
    normalizer.M2[...] = jp.asarray([4.0 * huge])
    batch = jp.asarray([[[2.0]], [[-2.0]]])
    for _ in range(5):
        normalizer.update_statistics(batch)
    assert float(normalizer.counter[...]) <= 2.0 * MAX_REMEMBERED_BATCHES + 2.0
    variance = float(normalizer.M2[0] / normalizer.counter[...])
    assert variance == pytest.approx(4.0, rel=1e-6)


def test_the_counter_is_exact_for_ordinary_runs() -> None:
    normalizer = Normalizer(1)
    update = nnx.jit(lambda n, x: n.update_statistics(x))
    for _ in range(100):
        update(normalizer, jp.ones((20, 256, 1)))
    assert float(normalizer.counter[...]) == 512_000.0
