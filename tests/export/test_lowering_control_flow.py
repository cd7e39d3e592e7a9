"""Branches and loops give what JAX gives, row by row and over axes of any length."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax import lax
from lowered import assert_same_everywhere

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32) * 2
SPECIAL = np.array([[np.nan, 1.0, -0.0], [np.inf, -np.inf, 2.0]], np.float32)


def collatz(n):
    def step(state):
        n, count = state
        return jp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return lax.while_loop(lambda s: s[0] > 1, step, (n, jp.int32(0)))[1]


def halve(x):
    return lax.while_loop(lambda v: jp.max(jp.abs(v)) > 0.5, lambda v: v * 0.5, x)


def newton(target):
    def step(state):
        guess, last = state
        return 0.5 * (guess + target / guess), guess

    start = (jp.maximum(target, 1.0), jp.zeros_like(target))
    return lax.while_loop(lambda s: jp.abs(s[0] - s[1]) > 1e-4, step, start)[0]


LOOPS = {
    "while": halve,
    "while_per_row": jax.vmap(halve),
    "while_per_element": jax.vmap(jax.vmap(lambda v: newton(jp.abs(v) + 0.1))),
    "while_with_constants": lambda x: lax.while_loop(
        lambda s: jp.sum(s) < jp.sum(jp.abs(x)) + 9.0, lambda s: s + jp.abs(x) + 1.0, x
    ),
    "while_never": lambda x: lax.while_loop(lambda v: jp.max(v) > 1e6, lambda v: v + 1.0, x),
    "fori": lambda x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + x * i.astype(jp.float32), x),
    "fori_long": lambda x: lax.fori_loop(0, 40, lambda i, c: c * 0.5 + x, x),
    "fori_computed": lambda x: lax.fori_loop(
        0, jp.sum(x > 0.0).astype(jp.int32), lambda i, c: c + 1.0, x
    ),
    "fori_per_row": jax.vmap(
        lambda r: lax.fori_loop(0, jp.sum(r > 0.0).astype(jp.int32), lambda i, c: c + r, r)
    ),
    "nested": lambda x: lax.fori_loop(
        0, 3, lambda i, c: lax.while_loop(lambda v: jp.max(v) < 50.0, lambda v: v * 2.0, c + 1.0), x
    ),
}


def scanned(x, **options):
    return lax.scan(lambda c, t: (c * 0.5 + t, c - t), x[:, 0], jp.swapaxes(x, 0, 1), **options)


def long_scan(x, **options):
    sequence = jp.arange(40.0)
    carry, ys = lax.scan(lambda c, t: (c * 0.9 + t, c), x, sequence, **options)
    return carry, jp.swapaxes(ys, 0, 1)


SCANS = {
    "scan": lambda x: jax.tree.map(jp.transpose, scanned(x)),
    "reverse": lambda x: jax.tree.map(jp.transpose, scanned(x, reverse=True)),
    "unrolled": lambda x: jax.tree.map(jp.transpose, scanned(x, unroll=3)),
    "long": long_scan,
    "long_reverse": lambda x: long_scan(x, reverse=True),
    "length_only": lambda x: lax.scan(lambda c, _: (c * 0.9, None), x, None, length=30)[0],
    "length_zero": lambda x: lax.scan(lambda c, t: (c + t, c), x, jp.zeros(0))[0],
    "integers": lambda x: lax.scan(
        lambda c, t: (c + t, c > 3), (x > 0.0).astype(jp.int32), jp.arange(20)
    )[0],
    "over_the_batch": lambda x: lax.scan(lambda c, r: (c + r, c * 2.0), jp.zeros(6), x)[1],
    "over_the_batch_reverse": lambda x: lax.scan(
        lambda c, r: (c + r, c * 2.0), jp.zeros(6), x, reverse=True
    )[1],
    "map_rows": lambda x: lax.map(lambda r: jp.tanh(r) * 2.0, x),
    "map_columns": lambda x: lax.map(jp.sum, x.T) + x,
    "associative": lambda x: lax.associative_scan(lambda a, b: a * b + a, x, axis=1),
    "associative_reverse": lambda x: lax.associative_scan(jp.maximum, x, axis=1, reverse=True),
    "per_row": jax.vmap(lambda r: lax.scan(lambda c, t: (c * 0.5 + t, c), 0.0, r)[1]),
}


def integrate(x):
    """A branch whose loop would not end if the other branch's case ran it."""
    return lax.cond(
        jp.all(x < 1e3),
        lambda v: lax.while_loop(lambda s: jp.max(s) < 1e3, lambda s: jp.abs(s) * 2.0 + 1.0, v),
        lambda v: lax.while_loop(lambda s: jp.max(s) < 1e3, lambda s: s, v),
        x,
    )


WEIGHT, BIAS = np.eye(6, dtype=np.float32) * 0.5, np.arange(6, dtype=np.float32)


def a_product_in_a_branch(x):
    """The bias joins the product, which the branch needs without it."""
    y = x @ WEIGHT
    inside = lax.cond(jp.sum(x) > -1e3, lambda v: halve(v + y), lambda v: v, x)
    return inside + (y + BIAS)


@jax.custom_jvp
def clipped(x):
    return jp.clip(x, -1.0, 1.0)


clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0]))


@jax.custom_vjp
def straight_through(x):
    return jp.round(x)


straight_through.defvjp(lambda x: (jp.round(x), None), lambda _, g: (g,))

BRANCHES = {
    "cond": lambda x: lax.cond(jp.sum(x) > 0.0, jp.sin, jp.cos, x),
    "cond_per_row": jax.vmap(lambda r: lax.cond(jp.sum(r) > 0.0, jp.sin, jp.cos, r)),
    "switch": lambda x: lax.switch(jp.sum(x > 0.0), [jp.sin, jp.cos, jp.tanh], x),
    "switch_per_row": jax.vmap(lambda r: lax.switch(jp.sum(r > 0.0), [jp.sin, jp.cos, jp.tanh], r)),
    "switch_below": lambda x: lax.switch(-jp.sum(x > 0.0), [jp.sin, jp.cos], x),
    "branch_with_a_loop": integrate,
    "switch_with_loops": lambda x: lax.switch(
        jp.sum(x > 0.0) % 3, [halve, lambda v: v + 1.0, lambda v: halve(v + 2.0)], x
    ),
    "product_in_a_branch": a_product_in_a_branch,
    "several_outputs": lambda x: lax.cond(
        x[0, 0] > 0.0, lambda v: (v, (v > 0.0)), lambda v: (-v, (v < 1.0)), x
    ),
    "custom_jvp": clipped,
    "custom_vjp": straight_through,
    "remat": jax.checkpoint(lambda x: jp.sin(x) * 2.0),
    "nested_jit": jax.jit(lambda x: jax.jit(jp.tanh)(x) + jax.jit(jp.tanh)(x * 2.0)),
    "gradient": jax.grad(lambda x: jp.sum(jp.tanh(x) ** 2)),
    "where": lambda x: jp.where(x > 0.0, x, jp.exp(x)),
}


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("table", [LOOPS, SCANS, BRANCHES], ids=["loops", "scans", "branches"])
def test_control_flow(table, batch_size):
    assert_same_everywhere(
        lambda x: {name: f(x) for name, f in table.items()}, X, batch_size=batch_size, rtol=1e-5
    )


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_loop_for_each_row_ends_for_each_row_by_itself(batch_size):
    outputs = assert_same_everywhere(
        jax.vmap(collatz), np.array([1, 6, 27, 7], np.int32), batch_size=batch_size, atol=0, rtol=0
    )
    assert outputs[0].tolist() == [0, 8, 111, 16]


def test_the_branch_not_taken_leaves_no_nan():
    assert_same_everywhere(
        lambda x: {
            "cond": lax.cond(jp.bool_(True) & (x.shape[0] > 0), lambda v: v, jp.log, x),
            "loop": lax.fori_loop(0, 20, lambda i, c: jp.where(i < 19, c, c * 2.0), x),
            "row": jax.vmap(lambda r: lax.cond(r[1] > 0.0, lambda v: v, lambda v: v / 0.0, r))(x),
        },
        SPECIAL,
        batch_size=2,
    )
