"""Tests of the two layouts of delay buffers."""

import copy

import jax
import jax.numpy as jp
import numpy as np
import pytest
from jax import export

from nnx_ppo.networks.delay_line import RING, TIME_ORDERED, DelayLine

LINES = pytest.mark.parametrize("line", [RING, TIME_ORDERED], ids=repr)


def run(line: DelayLine, values: np.ndarray, depth: int) -> np.ndarray:
    """Returns what each delay reads before each push, ``[steps, depth, batch, *leaf]``."""
    buffer = jp.zeros((values.shape[1], depth, *values.shape[2:]), values.dtype)
    pointer = line.initial_pointer(values.shape[1])
    reads = []
    for value in values:
        reads.append([line.read(buffer, pointer, k) for k in range(1, depth + 1)])
        buffer = line.push(buffer, pointer, value)
        pointer = line.advance(pointer, depth)
    return np.asarray(reads)


@LINES
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_delay_k_reads_the_value_of_k_steps_ago(
    line: DelayLine, depth: int, dtype: type[np.generic]
) -> None:
    values = np.random.default_rng(0).integers(0, 100, (12, 3, 2)).astype(dtype)
    reads = run(line, values, depth)
    padded = np.concatenate([np.zeros((depth, 3, 2), dtype), values])
    for step in range(12):
        for delay in range(1, depth + 1):
            np.testing.assert_array_equal(reads[step, delay - 1], padded[depth + step - delay])
    assert reads.dtype == dtype


def test_pointers_of_environments_move_independently() -> None:
    buffer = jp.asarray([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    pointer = jp.asarray([0, 2], jp.int32)
    np.testing.assert_array_equal(RING.read(buffer, pointer, 1), [[3.0], [5.0]])
    np.testing.assert_array_equal(RING.read(buffer, pointer, 3), [[1.0], [6.0]])
    pushed = RING.push(buffer, pointer, jp.asarray([[-1.0], [-2.0]]))
    np.testing.assert_array_equal(pushed[..., 0], [[-1.0, 2.0, 3.0], [4.0, 5.0, -2.0]])
    np.testing.assert_array_equal(RING.advance(pointer, 3), [1, 0])


def test_special_values_travel_unchanged() -> None:
    values = np.asarray([[[np.nan, np.inf, -0.0]]], np.float32)
    for line in (RING, TIME_ORDERED):
        read = run(line, np.repeat(values, 3, axis=0), 2)[2, 1, 0]
        np.testing.assert_array_equal(read.view(np.uint32), values[0, 0].view(np.uint32))


@LINES
def test_programs_trace_with_a_symbolic_batch(line: DelayLine) -> None:
    (batch,) = export.symbolic_shape("b")
    pointer_type = None if line is TIME_ORDERED else jax.ShapeDtypeStruct((batch,), jp.int32)

    def step(buffer: jax.Array, pointer: jax.Array | None, value: jax.Array) -> object:
        read = line.read(buffer, pointer, 2)
        return read, line.push(buffer, pointer, value), line.advance(pointer, 3)

    exported = export.export(jax.jit(step))(
        jax.ShapeDtypeStruct((batch, 3, 4), jp.float32),
        pointer_type,
        jax.ShapeDtypeStruct((batch, 4), jp.float32),
    )
    buffer = jp.arange(24.0).reshape(2, 3, 4)
    pointer = line.initial_pointer(2)
    expected = step(buffer, pointer, buffer[:, 0])
    for got, want in zip(
        jax.tree.leaves(exported.call(buffer, pointer, buffer[:, 0])),
        jax.tree.leaves(expected),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_ring_reads_emit_no_sign_handling() -> None:
    text = str(
        jax.make_jaxpr(lambda b, p: RING.read(b, p, 2))(jp.zeros((2, 3, 4)), jp.zeros(2, jp.int32))
    )
    assert "rem" in text
    for primitive in ("select_n", "sign", " lt ", "clamp"):
        assert primitive not in text


def test_time_ordered_lines_keep_no_pointer() -> None:
    assert TIME_ORDERED.initial_pointer(3) is None
    assert TIME_ORDERED.advance(None, 2) is None
    assert TIME_ORDERED.reset_pointer(None) is None


def test_pointers_reset_with_and_without_a_batch_axis() -> None:
    np.testing.assert_array_equal(RING.reset_pointer(jp.asarray([2, 1], jp.int32)), [0, 0])
    assert int(RING.reset_pointer(jp.asarray(2, jp.int32))) == 0


def test_a_ring_without_pointer_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="time order"):
        RING.read(jp.zeros((1, 2, 3)), None, 1)


def test_copies_of_a_layout_are_equal() -> None:
    assert copy.deepcopy(RING) == RING
    assert hash(copy.deepcopy(RING)) == hash(RING)
    assert RING != TIME_ORDERED
