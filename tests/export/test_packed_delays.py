"""Buffers packed in one array do what they did on their own."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend import core as jcore

from export.packed_carry import PackedCarry
from export.passes import collapse_reshapes, merge_linear_maps, pack_delays, split_slices
from nnx_ppo.networks.delay_line import TIME_ORDERED
from serving.manifest import CarryPort

BATCH = jax.export.symbolic_shape("b")[0]


def step_of(leaves, reads):
    """Return a step whose buffers hold `leaves` of given depths and are read at `reads`."""

    def step(*inputs):
        *buffers, x = inputs
        action = x * 0.5
        pushed = []
        for index, (buffer, (_, shape)) in enumerate(zip(buffers, leaves, strict=True)):
            for delay in reads[index]:
                value = TIME_ORDERED.read(buffer, None, delay)
                action = action + value.reshape(x.shape[0], -1).sum(1, keepdims=True) * delay
            value = jp.broadcast_to(x[:, :1].reshape(-1, *[1] * len(shape)), (x.shape[0], *shape))
            value = jp.tanh(value + index).astype(buffer.dtype)
            pushed.append(TIME_ORDERED.push(buffer, None, value))
        return (action, *pushed)

    return step


def traced(step, leaves, dtype=jp.float32):
    specs = [jax.ShapeDtypeStruct((BATCH, depth, *shape), dtype) for depth, shape in leaves]
    return jax.make_jaxpr(step)(*specs, jax.ShapeDtypeStruct((BATCH, 3), jp.float32))


def callable_of(closed):
    specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.export.export(jax.jit(jcore.jaxpr_as_fun(closed)))(*specs).call


def ports_of(leaves, dtype="float32"):
    return [
        CarryPort(f"carry.{i}", [i], [depth, *shape], dtype, f"next_carry.{i}", "initial", "state")
        for i, (depth, shape) in enumerate(leaves)
    ]


LEAVES = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([(2,), (3,), (1,), (2, 3), ()])),
    min_size=2,
    max_size=6,
)


@given(LEAVES, st.data())
@settings(max_examples=4, deadline=None, derandomize=True)
def test_packed_buffers_give_the_same_actions_and_hold_the_same_values(leaves, data):
    assert_packs_well(leaves, data)


@pytest.mark.slow
@given(LEAVES, st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_many_packed_buffers_give_the_same_actions_and_hold_the_same_values(leaves, data):
    assert_packs_well(leaves, data)


def assert_packs_well(leaves, data):
    reads = [
        data.draw(st.lists(st.integers(1, depth), min_size=1, max_size=3)) for depth, _ in leaves
    ]
    closed = collapse_reshapes(traced(step_of(leaves, reads), leaves))
    packed_step, packed = pack_delays(closed, range(len(leaves)), n_carry=len(leaves), n_actions=1)
    assert len(packed) == 1 and packed[0].width == sum(
        depth * int(np.prod(shape)) for depth, shape in leaves
    )
    for variant in (collapse_reshapes, lambda c: split_slices(merge_linear_maps(c))):
        plain, other = callable_of(closed), callable_of(variant(packed_step))
        generator = np.random.default_rng(0)
        rows = [generator.normal(size=(d, *s)).astype(np.float32) for d, s in leaves]
        carry = PackedCarry(ports_of(leaves), rows, packed)
        buffers = [np.stack([row, row]) for row in rows]
        whole = np.stack([carry.initial["carry.delays"]] * 2)
        for _ in range(7):
            x = generator.normal(size=(2, 3)).astype(np.float32)
            action, *buffers = plain(*buffers, x)
            packed_action, whole = other(whole, x)
            np.testing.assert_allclose(packed_action, action, rtol=1e-6, atol=1e-6)
            for index, buffer in enumerate(buffers):
                slots = carry.places[index][1]
                width = int(np.prod(leaves[index][1]))
                for slot, column in enumerate(slots):
                    held = np.asarray(whole)[:, column : column + width]
                    np.testing.assert_array_equal(held, np.asarray(buffer[:, slot]).reshape(2, -1))


def test_dtypes_are_packed_apart():
    leaves = [(2, (3,)), (1, (2,)), (3, (2,)), (2, (1,))]

    def step(a, b, c, d, x):
        pushed = [
            TIME_ORDERED.push(buffer, None, jp.ones((x.shape[0], *shape), buffer.dtype))
            for buffer, (_, shape) in zip((a, b, c, d), leaves, strict=True)
        ]
        read = sum(
            TIME_ORDERED.read(buffer, None, 1).sum(1, keepdims=True).astype(jp.float32)
            for buffer in (a, b, c, d)
        )
        return (x + read, *pushed)

    specs = [
        jax.ShapeDtypeStruct((BATCH, depth, *shape), dtype)
        for (depth, shape), dtype in zip(
            leaves, (jp.float32, jp.int32, jp.float32, jp.int32), strict=True
        )
    ]
    closed = jax.make_jaxpr(step)(*specs, jax.ShapeDtypeStruct((BATCH, 3), jp.float32))
    packed_step, packed = pack_delays(collapse_reshapes(closed), range(4), n_carry=4, n_actions=1)
    assert [(entry.members, str(entry.dtype)) for entry in packed] == [
        ([0, 2], "float32"),
        ([1, 3], "int32"),
    ]
    assert [str(v.aval.dtype) for v in packed_step.jaxpr.invars] == ["float32", "int32", "float32"]


@pytest.mark.parametrize("what", ["kept", "summed", "read after the push", "put out"])
def test_a_buffer_used_in_another_way_stays_as_it_is(what):
    leaves = [(2, (3,)), (2, (3,)), (2, (3,))]

    def step(a, b, c, x):
        pushed = [TIME_ORDERED.push(buffer, None, x) for buffer in (a, b, c)]
        action = x + TIME_ORDERED.read(a, None, 1) + TIME_ORDERED.read(b, None, 2)
        if what == "kept":
            pushed[2] = c
        elif what == "summed":
            action = action + c.sum(1)
        elif what == "read after the push":
            action = action + TIME_ORDERED.read(pushed[2], None, 2)
        else:
            return (action, *pushed, pushed[2])
        return (action, *pushed)

    closed = collapse_reshapes(traced(step, leaves))
    packed_step, packed = pack_delays(closed, range(3), n_carry=3, n_actions=1)
    assert [entry.members for entry in packed] == [[0, 1]]
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    third = np.random.default_rng(1).normal(size=(2, 2, 3)).astype(np.float32)
    zeros = np.zeros((2, 2, 3), np.float32)
    expected = callable_of(closed)(zeros, zeros, third, x)
    actual = callable_of(packed_step)(third, np.zeros((2, 12), np.float32), x)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    np.testing.assert_array_equal(actual[1], expected[3])


def test_one_buffer_is_not_packed():
    leaves = [(3, (2,))]
    closed = traced(step_of(leaves, [[1, 3]]), leaves)
    same, packed = pack_delays(closed, [0], n_carry=1, n_actions=1)
    assert same is closed and packed == []


def test_neighbouring_reads_become_one_and_one_split_serves_all():
    leaves = [(1, (2,)), (3, (2,)), (3, (2,))]
    weights = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)

    def step(a, b, c, x):
        delayed = [TIME_ORDERED.read(buffer, None, 1) for buffer in (c, a, b)]
        action = sum(value @ weight for value, weight in zip(delayed, weights, strict=True))
        old = TIME_ORDERED.read(c, None, 3)
        pushed = [TIME_ORDERED.push(buffer, None, jp.tanh(x[:, :2])) for buffer in (a, b, c)]
        return (action + old, *pushed)

    closed = collapse_reshapes(traced(step, leaves))
    packed_step, packed = pack_delays(closed, range(3), n_carry=3, n_actions=1)
    simplified = split_slices(merge_linear_maps(collapse_reshapes(packed_step)))
    names = [equation.primitive.name for equation in simplified.jaxpr.eqns]
    # The first slot is read as a whole; the rest comes from one split.
    assert names.count("slice") == names.count("split") == names.count("dot_general") == 1
    assert names.count("concatenate") == 1
    generator = np.random.default_rng(2)
    whole = generator.normal(size=(4, packed[0].width)).astype(np.float32)
    x = generator.normal(size=(4, 3)).astype(np.float32)
    for a, e in zip(
        callable_of(simplified)(whole, x), callable_of(packed_step)(whole, x), strict=True
    ):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x[:, None, :].reshape(x.shape[0], 4), []),
        (lambda x: jp.squeeze(jp.expand_dims(x, (1, 3)), 3), ["reshape"]),
        (lambda x: jp.broadcast_to(x[:, None, :], (x.shape[0], 2, 4)), ["broadcast_in_dim"] * 2),
    ],
)
def test_chains_of_reshapes_collapse(function, left):
    spec = jax.ShapeDtypeStruct((BATCH, 4), jp.float32)
    closed = collapse_reshapes(jax.make_jaxpr(function)(spec))
    names = [equation.primitive.name for equation in closed.jaxpr.eqns]
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_array_equal(callable_of(closed)(x)[0], function(jp.asarray(x)))
    assert names == left


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 4), (2, 6)],
        [(0, 3), (2, 5), (4, 6)],
        [(0, 6), (1, 3), (3, 5)],
        [(0, 2), (2, 4), (4, 6), (1, 5)],
        [(0, 2), (2, 2), (2, 6)],
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_ranges_that_overlap_are_read_as_they_were(ranges, joined):
    def function(x):
        parts = [jax.lax.slice_in_dim(x, first, end, axis=1) for first, end in ranges]
        totals = [jp.tanh(part).sum(1, keepdims=True) for part in parts]
        return jp.concatenate([*parts, *totals] if joined else totals, axis=1)

    closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((BATCH, 6), jp.float32))
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    actual = callable_of(split_slices(closed))(x)[0]
    np.testing.assert_allclose(actual, function(jp.asarray(x)), rtol=1e-6)
