import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.algorithms.trees import promote_tree, strong_types, tree_sum, tree_where

COND = jp.array([True, False, True])


def test_each_environment_gets_its_own_choice_over_trailing_axes():
    on_true = {"a": jp.ones((3, 2, 2)), "b": jp.array([1, 2, 3])}
    on_false = {"a": jp.zeros((3, 2, 2)), "b": jp.array([-1, -2, -3])}
    chosen = tree_where(COND, on_true, on_false)
    np.testing.assert_array_equal(chosen["a"][:, 0, 0], [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(chosen["b"], [1, -2, 3])


def test_leaves_without_batch_axis_are_shared_and_come_from_the_first_tree():
    on_true = {"scalar": jp.array(1.0), "python": 3, "other": jp.ones(5)}
    on_false = {"scalar": jp.array(2.0), "python": 4, "other": jp.zeros(5)}
    chosen = tree_where(COND, on_true, on_false)
    assert float(chosen["scalar"]) == 1.0
    assert chosen["python"] == 3
    np.testing.assert_array_equal(chosen["other"], jp.ones(5))


def test_keys_can_be_chosen():
    first, second = jax.random.split(jax.random.key(0), 3), jax.random.split(jax.random.key(1), 3)
    chosen = tree_where(COND, first, second)
    assert bool(jp.all(chosen == jp.stack([first[0], second[1], first[2]])))


def test_trees_of_different_structure_are_refused():
    with pytest.raises(ValueError):
        tree_where(COND, {"a": jp.ones(3)}, {"b": jp.ones(3)})


def test_promotion_reconciles_bool_and_float_even_under_strict_promotion():
    promoted = promote_tree({"done": jp.array([True])}, {"done": jp.array([0.0])})
    assert promoted["done"].dtype == jp.float32
    keys = jax.random.split(jax.random.key(0), 2)
    assert promote_tree(keys, keys) is keys


def test_strong_types_fixes_the_type_of_python_numbers():
    tree = strong_types({"a": 1.0, "b": jax.random.key(0), "c": jp.array(2)})
    assert tree["a"].dtype == jp.float32
    assert not tree["a"].weak_type
    assert not tree["c"].weak_type


def test_tree_sum_adds_leaves_elementwise():
    assert float(tree_sum({"a": jp.array(1.0), "b": jp.array(2.5)})) == 3.5
    np.testing.assert_array_equal(tree_sum(jp.array([1.0, 2.0])), [1.0, 2.0])
