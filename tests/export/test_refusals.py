"""What no exported step can do is refused in one error that names the user's line and module."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.experimental import io_callback

from export import (
    HiddenStateError,
    HostCallbackError,
    NetworkError,
    RandomnessError,
    UnsupportedOperationError,
    export_policy,
)
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

OBS = np.zeros(4, np.float32)


class Inner(nnx.Module):
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


class Outer(StatefulModule):
    def __init__(self, function):
        self.inner = Inner(function)

    def __call__(self, module_state, obs, rollout_extras=None):
        return StatefulModuleOutput(module_state, self.inner(obs), jp.array(0.0), {})


def export_error(network, directory, **options):
    with pytest.raises(Exception) as caught:
        export_policy(network, OBS, directory / "policy", **options)
    assert list(directory.iterdir()) == []
    return caught.value


def assert_names_the_place(error):
    message = str(error)
    assert "module 'inner'" in message, message
    assert "test_refusals.py:" in message, message


def spectrum(x):
    return jp.abs(jp.fft.fft(x.astype(jp.complex64))).astype(jp.float32)


def turned(x):
    z = lax.complex(x, x) * jp.complex64(1j)
    return jp.real(z)


@pytest.mark.parametrize(("function", "primitive"), [(turned, "complex"), (spectrum, "")])
def test_complex_numbers(function, primitive, tmp_path):
    error = export_error(Outer(function), tmp_path, formats=["onnx"])
    assert isinstance(error, UnsupportedOperationError)
    assert_names_the_place(error)
    assert "complex numbers" in str(error) and primitive in error.primitive


def bits(x):
    key = jp.zeros(4, jp.uint32) + x[0, :1].astype(jp.uint32)
    return x + lax.rng_bit_generator(key, x.shape)[1].astype(jp.float32)


def threefry(x):
    key = jax.random.wrap_key_data(x[0, :2].astype(jp.uint32))
    return x + jax.random.bits(key, (x.shape[0], 4)).astype(jp.float32)


def in_a_loop(x):
    return lax.fori_loop(0, 3, lambda i, c: c + threefry(c), x)


@pytest.mark.parametrize("function", [bits, threefry, in_a_loop])
def test_random_draws(function, tmp_path):
    error = export_error(Outer(function), tmp_path, batch_size=2)
    assert isinstance(error, RandomnessError)
    assert_names_the_place(error)


def through_numpy(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def with_effects(x):
    return io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def printing(x):
    jax.debug.print("{x}", x=x)
    return x * 2.0


def calling(x):
    jax.debug.callback(lambda v: None, x)
    return x * 2.0


def printing_in_a_branch(x):
    return lax.cond(x[0, 0] > 0.0, printing, lambda v: v, x)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize(
    "function", [through_numpy, with_effects, printing, calling, printing_in_a_branch]
)
def test_calls_back_into_python(function, batch_size, tmp_path):
    error = export_error(Outer(function), tmp_path, batch_size=batch_size)
    assert isinstance(error, HostCallbackError)
    assert_names_the_place(error)
    assert f"({function.__name__.removesuffix('_in_a_branch')})" in str(error)


def picked(x):
    return x[x > 0.0]


def counted(x):
    return jp.nonzero(x)[0]


def distinct(x):
    return jp.unique(x)


def sized(x):
    return jp.zeros(jp.sum(x > 0.0).astype(jp.int32)) + x[0, 0]


def repeated(x):
    return jp.repeat(x, (x[0] > 0.0).astype(jp.int32), axis=1)


@pytest.mark.parametrize("function", [picked, counted, distinct, sized, repeated])
def test_shapes_that_values_decide(function, tmp_path):
    error = export_error(Outer(function), tmp_path, batch_size=2)
    assert type(error) is NetworkError
    assert_names_the_place(error)
    assert "decide a shape" in str(error) and f"({function.__name__})" in str(error)


def branching(x):
    return x if x.sum() > 0.0 else -x


def test_python_that_asks_for_values(tmp_path):
    error = export_error(Outer(branching), tmp_path)
    assert type(error) is NetworkError
    assert_names_the_place(error)
    assert "lax.cond" in str(error) and "(branching)" in str(error)


def failing(x):
    raise OSError("the table is gone")


def test_a_call_that_fails(tmp_path):
    error = export_error(Outer(failing), tmp_path)
    assert type(error) is NetworkError
    assert_names_the_place(error)
    assert "OSError" in str(error) and "(failing)" in str(error)


class Counter(StatefulModule):
    def __init__(self):
        self.calls = 0
        self.limits = {"low": -1.0}

    def __call__(self, module_state, obs, rollout_extras=None):
        self.calls += 1
        return StatefulModuleOutput(module_state, obs * self.calls, jp.array(0.0), {})


def test_a_counter_in_python(tmp_path):
    network = Counter()
    error = export_error(network, tmp_path)
    assert isinstance(error, HiddenStateError)
    assert "attribute 'calls'" in str(error) and "test_refusals.py:" in str(error)
    assert "(__call__)" in str(error) and network.calls == 0


class Widens(Counter):
    def __call__(self, module_state, obs, rollout_extras=None):
        low = self.limits["low"]
        self.limits["low"] = low * 2.0
        return StatefulModuleOutput(module_state, jp.maximum(obs, low), jp.array(0.0), {})


def test_a_dictionary_in_python(tmp_path):
    error = export_error(Widens(), tmp_path)
    assert isinstance(error, HiddenStateError)
    assert "attribute 'limits'" in str(error) and "test_refusals.py:" in str(error)


class Records(Counter):
    """Changes much in Python, none of which the next step depends on."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.cache = {}
        self.scale = nnx.Param(jp.arange(4.0))

    def __call__(self, module_state, obs, rollout_extras=None):
        self.calls += 1
        self.seen.append(obs)
        shifted = obs + 1.0
        if "scale" not in self.cache:
            self.cache["scale"] = jp.exp(self.scale[...])
        return StatefulModuleOutput(
            module_state, shifted * self.cache["scale"], jp.array(0.0), {"calls": self.calls}
        )


@pytest.mark.parametrize("batch_size", [None, 2])
def test_changes_in_python_that_nothing_depends_on_are_no_state(batch_size, tmp_path):
    network = Records()
    bundle = export_policy(network, OBS, tmp_path / "policy", batch_size=batch_size)
    assert bundle.manifest.artefacts and network.calls == 0


class Caches(Counter):
    def __call__(self, module_state, obs, rollout_extras=None):
        self.width = obs.shape[-1]
        return StatefulModuleOutput(module_state, obs * 2.0, jp.array(0.0), {})


def test_an_attribute_that_the_step_adds_is_no_state(tmp_path):
    bundle = export_policy(Caches(), OBS, tmp_path / "policy", formats=["stablehlo"])
    assert list(bundle.manifest.artefacts) == ["stablehlo"]
