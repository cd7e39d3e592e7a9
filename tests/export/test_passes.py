"""Each pass removes what it promises and changes no output."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax.extend import core as jcore

from export.passes import (
    drop_dead_columns,
    fold_constants,
    fold_scales,
    inline_calls,
    merge_linear_maps,
    remove_dead_code,
    simplify_identities,
    take_slots,
    used_inputs,
)

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
B = jax.export.symbolic_shape("b")[0]


def traced(function, *arguments):
    specs = [jax.ShapeDtypeStruct((B, *a.shape[1:]), a.dtype) for a in arguments]
    return jax.make_jaxpr(function)(*specs)


def names(closed):
    return [equation.primitive.name for equation in closed.jaxpr.eqns]


def check_equal(closed, function, *arguments, exact=True):
    """Compare the rewritten jaxpr with the function it came from."""
    expected = jax.tree.leaves(function(*arguments))
    actual = jax.jit(jcore.jaxpr_as_fun(at_size(closed, function, arguments)))(*arguments)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6)


def at_size(closed, function, arguments):
    """Evaluate symbolic jaxprs through an export, which fixes the batch at the call."""
    specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    exported = jax.export.export(jax.jit(jcore.jaxpr_as_fun(closed)))(*specs)
    return jax.make_jaxpr(exported.call)(*arguments)


def nested(x):
    inner = jax.jit(lambda y: jax.nn.relu(y) * 2.0)
    return jax.checkpoint(lambda y: jax.nn.silu(inner(y)))(x) + inner(x)


def test_inlining_leaves_no_call():
    closed = inline_calls(traced(nested, X))
    assert not {"jit", "pjit", "custom_jvp_call", "checkpoint", "remat"} & set(names(closed))
    assert names(closed).count("max") == 2
    check_equal(closed, nested, X, exact=False)


def test_inlining_reaches_loop_bodies():
    def looped(x):
        return jax.lax.scan(lambda c, _: (jax.nn.relu(c) - 0.1, None), x, None, length=3)[0]

    closed = inline_calls(traced(looped, X))
    body = closed.jaxpr.eqns[0].params["jaxpr"]
    assert names(body) == ["max", "sub"]
    check_equal(closed, looped, X)


def test_inlined_operations_still_tell_their_module_and_line():
    from export.module_scopes import module_path_of, source_line_of

    def scoped(x):
        with jax.named_scope("@trunk.0"):
            return jax.jit(jp.tanh)(x)

    equation = inline_calls(traced(scoped, X)).jaxpr.eqns[0]
    assert module_path_of(equation) == "trunk.0"
    assert "test_passes.py" in source_line_of(equation)


def test_constants_are_computed_and_constant_branches_chosen():
    weights = jp.linspace(0.0, 1.0, 4)

    def function(x):
        scale = jp.sqrt(jp.maximum(weights, 0.04)) + 1.0
        chosen = jax.lax.cond(weights.sum() > 1.0, lambda: scale, lambda: scale * 9.0)
        return x / chosen

    closed = fold_constants(inline_calls(traced(function, X)))
    assert [n for n in names(closed) if n != "broadcast_in_dim"] == ["div"]
    check_equal(closed, function, X, exact=False)


def test_inputs_declared_constant_remain_but_are_unread():
    def function(w, x):
        return x * jp.exp(w)

    closed = jax.make_jaxpr(function)(jp.ones(4), jp.asarray(X))
    folded = fold_constants(inline_calls(closed), known={0: np.full(4, 2.0, np.float32)})
    assert len(folded.jaxpr.invars) == 2
    assert used_inputs(folded, [True]) == [False, True]
    result = jcore.jaxpr_as_fun(folded)(jp.zeros(4), jp.asarray(X))[0]
    np.testing.assert_allclose(result, X * np.exp(2.0), rtol=1e-6)


def test_a_huge_constant_stays_the_operation_that_makes_it():
    closed = fold_constants(inline_calls(traced(lambda x: x.sum() + jp.zeros((600, 600)), X)))
    assert "broadcast_in_dim" in names(closed)
    assert all(np.size(value) < 600 * 600 for value in closed.consts)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jp.zeros((x.shape[0], 4)) + x,
        lambda x: x * 1.0,
        lambda x: x - jp.zeros(4),
        lambda x: jax.lax.stop_gradient(x) / 1.0,
        lambda x: jp.transpose(x, (0, 1)).astype(jp.float32),
    ],
)
def test_operations_that_change_nothing_go(function):
    closed = simplify_identities(fold_constants(inline_calls(traced(function, X))))
    live = remove_dead_code(closed, [True], [True])
    assert names(live) == []
    assert live.jaxpr.outvars == live.jaxpr.invars


def test_what_changes_something_stays():
    closed = simplify_identities(fold_constants(traced(lambda x: (x + 1e-9, 0.0 - x, 1.0 / x), X)))
    assert names(remove_dead_code(closed, [True] * 3, [True])) == ["add", "sub", "div"]


def test_dead_code_goes_through_loops():
    def function(x, unused):
        def body(carry, _):
            return (carry[0] * 0.5, carry[1] + unused), None

        (a, b), _ = jax.lax.scan(body, (x, x), None, length=3)
        return a, b

    closed = inline_calls(traced(function, X, X))
    assert used_inputs(closed, [True, False]) == [True, False]
    assert used_inputs(closed, [False, True]) == [True, True]
    pruned = remove_dead_code(closed, [True, False], [True, False])
    check_equal(pruned, lambda x: function(x, x)[0], X)


def test_a_needed_input_cannot_be_dropped():
    closed = traced(lambda x, y: x + y, X, X)
    with pytest.raises(ValueError, match=r"inputs \[1\]"):
        remove_dead_code(closed, [True], [True, False])


W = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
BIAS = np.random.default_rng(2).normal(size=(6,)).astype(np.float32)


@pytest.mark.parametrize(
    "cut",
    [
        lambda y: jp.split(y, 2, axis=-1)[0],
        lambda y: jp.split(y, 2, axis=-1)[1],
        lambda y: jax.lax.slice_in_dim(y, 1, 4, axis=1),
    ],
)
def test_columns_that_are_cut_off_leave_the_matrix(cut):
    def function(x):
        return jp.tanh(cut((x @ jp.asarray(W) + jp.asarray(BIAS)) * 0.5))

    closed = fold_constants(inline_calls(traced(function, X)))
    narrowed = drop_dead_columns(remove_dead_code(closed, [True], [True]))
    assert sorted(np.shape(c) for c in narrowed.consts)[-1] == (4, 3)
    assert not {"split", "slice"} & set(names(narrowed))
    check_equal(narrowed, function, X, exact=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: jp.split(y, 2, axis=-1)[0] + y.sum(-1, keepdims=True))(x @ W),
        lambda x: sum(jp.split(x @ W, 2, axis=-1)),
        lambda x: jp.split(jax.nn.softmax(x @ W), 2, axis=-1)[0],
        lambda x: jp.split((x @ W) * (x @ W), 2, axis=-1)[0],
    ],
)
def test_columns_that_something_else_reads_stay(function):
    closed = fold_constants(inline_calls(traced(function, X)))
    live = remove_dead_code(closed, [True], [True])
    assert names(drop_dead_columns(live)) == names(live)
    check_equal(drop_dead_columns(live), function, X, exact=False)


SCALE = np.array([0.5, 2.0, 1e-2, 30.0], np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((x - 1.0) / SCALE) @ W,
        lambda x: (SCALE * x) @ W,
        lambda x: (lambda y: (y @ W, jp.tanh(y @ W[:, :2])))((x - 1.0) / SCALE),
        lambda x: (x * 0.1) @ W,
    ],
)
def test_a_scale_moves_into_the_weights_that_follow(function):
    closed = fold_scales(fold_constants(inline_calls(traced(function, X))))
    assert not {"mul", "div"} & set(names(closed))
    check_equal(closed, function, X, exact=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: y @ W + y.sum(-1, keepdims=True))(x / SCALE),
        lambda x: (lambda y: (y, y @ W))(x / SCALE),
        lambda x: (x * x[:, :1]) @ W,
        lambda x: (x / jp.array([0.0, 1.0, 1.0, 1.0])) @ W,
    ],
)
def test_a_scale_that_something_else_needs_stays(function):
    closed = fold_constants(inline_calls(traced(function, X)))
    assert names(fold_scales(closed)) == names(closed)


def test_large_offsets_keep_their_precision():
    """A mean of 1e4 and a deviation of 1e-2: folding the mean too would lose everything."""
    mean, deviation = np.float32(1e4), np.float32(1e-2)
    x = (mean + deviation * X).astype(np.float32)

    def function(x):
        return ((x - mean) / deviation) @ W

    closed = fold_scales(fold_constants(inline_calls(traced(function, x))))
    exact = ((x.astype(np.float64) - 1e4) / 1e-2) @ W.astype(np.float64)
    actual = jax.jit(jcore.jaxpr_as_fun(at_size(closed, function, (x,))))(x)[0]
    np.testing.assert_allclose(actual, exact, atol=1e-5, rtol=1e-5)


V = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)


@pytest.mark.parametrize(
    ("function", "arguments", "products"),
    [
        (lambda x, y: x @ W + BIAS + (y @ V + BIAS), (X, X[::-1].copy()), 1),
        (lambda x, y: jp.tanh((x @ W + y[:, :3] @ V[:3]) + x @ V + y[:, :1]), (X, -X), 1),
        (lambda x, y: x @ W + x @ V + jp.sin(y @ W), (X, X * 0.5), 2),
    ],
)
def test_summed_products_become_one(function, arguments, products):
    closed = fold_constants(inline_calls(traced(function, *arguments)))
    merged = merge_linear_maps(closed)
    assert names(merged).count("dot_general") == products < names(closed).count("dot_general")
    check_equal(merged, function, *arguments, exact=False)


def test_products_that_are_read_elsewhere_are_not_merged():
    def function(x, y):
        product = x @ W
        return product + y @ V, product

    closed = fold_constants(inline_calls(traced(function, X, X)))
    assert names(merge_linear_maps(closed)) == names(closed)


def test_reading_one_position_becomes_one_operation():
    buffers = np.arange(24, dtype=np.float32).reshape(3, 4, 2)

    def function(x):
        return jax.lax.index_in_dim(x, 2, axis=1, keepdims=False), x[:, 1:2]

    marked = take_slots(inline_calls(traced(function, buffers)))
    equation = next(e for e in marked.jaxpr.eqns if e.primitive.name == "take_slot")
    assert equation.params == {"axis": 1, "index": 2}
    assert names(marked).count("slice") + names(marked).count("gather") == 1


def test_products_of_short_integers_are_not_added_before_they_are_widened():
    weights = np.full((4, 2), 100, np.int8)
    x = np.ones((3, 4), np.int8)

    def function(x):
        products = [jp.matmul(x, w, preferred_element_type=jp.int32) for w in (weights, weights)]
        return products[0] + products[1]

    closed = merge_linear_maps(fold_constants(inline_calls(traced(function, x))))
    assert names(closed).count("dot_general") == 2
    check_equal(closed, function, jp.asarray(x))


@pytest.mark.parametrize(("scale", "weight"), [(1e4, 0.0123), (1e-4, 10.0)])
def test_a_scale_that_the_weights_cannot_take_stays(scale, weight):
    weights = np.full((4, 2), weight, np.float16)
    x = np.full((3, 4), 0.5, np.float16)

    def function(x):
        return (x * jp.float16(1 / scale)) @ weights

    closed = fold_scales(fold_constants(inline_calls(traced(function, x))))
    assert "mul" in names(closed)
