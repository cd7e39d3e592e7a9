"""Networks that users write: names of their own, odd carries, and what is wrong with a step."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from export import NetworkError, verify_parity
from export.module_scopes import module_scopes
from export.step import build_step
from export.trajectory import action_of_output
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

OBS = np.zeros(4, np.float32)


class Policy(StatefulModule):
    """A linear layer; subclasses change one thing."""

    def __init__(self):
        self.layer = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def __call__(self, module_state, obs, rollout_extras=None):
        return StatefulModuleOutput(module_state, self.layer(obs), jp.array(0.0), {})


def assert_exported_step_acts_like(network):
    """Compare the step that every format is made of with the network under `jax.jit`."""
    observation = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    carry = network.initialize_state(3)
    expected = jax.jit(lambda c, o: action_of_output(network(c, o)))(carry, observation)
    step = build_step(network, OBS)
    rows = [np.repeat(step.initial_carry[port.name][None], 3, 0) for port in step.carry_ports]
    actual = step.function()(*rows, observation)[0]
    np.testing.assert_allclose(actual, expected, atol=2e-6, rtol=2e-6)


class OwnDelayLine(Policy):
    def __init__(self):
        super().__init__()
        self.delay_line = nnx.Linear(4, 4, rngs=nnx.Rngs(1))

    def __call__(self, module_state, obs, rollout_extras=None):
        return super().__call__(module_state, self.delay_line(obs))


class AsksForClasses(Policy):
    def __call__(self, module_state, obs, rollout_extras=None):
        factor = {nnx.Linear: 2.0}.get(type(self.layer), 3.0)
        return super().__call__(module_state, obs * factor)


class MakesAnother(Policy):
    def __init__(self, inner=True):
        super().__init__()
        self.inner = inner

    def __call__(self, module_state, obs, rollout_extras=None):
        if self.inner:
            return type(self)(inner=False)(module_state, self.layer(obs))
        return super().__call__(module_state, obs)


class InitialValuesFromArrays(Policy):
    def initialize_state(self, batch_size):
        return jp.zeros((batch_size, 4)) + float(jp.ones(()))

    def reset_state(self, prev_state):
        return jp.ones_like(prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        return StatefulModuleOutput(module_state, self.layer(module_state) + obs, 0.0, {})


class NumpyCarry(InitialValuesFromArrays):
    def initialize_state(self, batch_size):
        return np.ones((batch_size, 4))


@pytest.mark.parametrize(
    "network", [OwnDelayLine, AsksForClasses, MakesAnother, InitialValuesFromArrays, NumpyCarry]
)
def test_what_a_user_may_write_exports_as_it_acts(network):
    assert_exported_step_acts_like(network())


def test_the_classes_of_modules_are_as_before_once_scopes_are_left():
    before = nnx.Linear.__call__, vars(AsksForClasses)["__call__"], "__call__" in vars(OwnReset)
    network = AsksForClasses()
    with pytest.raises(KeyboardInterrupt), module_scopes(network):
        assert nnx.Linear.__call__ is not before[0]
        raise KeyboardInterrupt
    with module_scopes(OwnReset(lambda: 0)):
        pass
    after = nnx.Linear.__call__, vars(AsksForClasses)["__call__"], "__call__" in vars(OwnReset)
    assert after == before and after[2] is False


class WithoutReset(nnx.Module):
    def initialize_state(self, batch_size):
        return jp.zeros((batch_size, 4))

    def __call__(self, module_state, obs, rollout_extras=None):
        return StatefulModuleOutput(module_state, module_state + obs, 0.0, {})


class OwnReset(Policy):
    def __init__(self, reset):
        super().__init__()
        self.reset = reset

    def initialize_state(self, batch_size):
        return {"trace": jp.zeros((batch_size, 4))}

    def reset_state(self, prev_state):
        return self.reset()


class ResetOnValues(OwnReset):
    def __init__(self):
        super().__init__(None)

    def reset_state(self, prev_state):
        return prev_state if prev_state["trace"].sum() > 0 else self.initialize_state(2)


class FailingStart(Policy):
    def initialize_state(self, batch_size):
        raise OSError("the file with the initial state is gone")


class GrowingStart(Policy):
    def initialize_state(self, batch_size):
        return [jp.zeros((batch_size,))] * batch_size


class HalfPrecisionCarry(Policy):
    def initialize_state(self, batch_size):
        return {"trace": jp.zeros((batch_size, 4), jp.bfloat16)}

    def reset_state(self, prev_state):
        return jax.tree.map(jp.zeros_like, prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        past = module_state["trace"].astype(jp.float32)
        state = {"trace": (past + obs).astype(jp.bfloat16)}
        return StatefulModuleOutput(state, self.layer(past), 0.0, {})


class Answers(Policy):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def __call__(self, module_state, obs, rollout_extras=None):
        return StatefulModuleOutput(module_state, self.answer(self.layer(obs)), 0.0, {})


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (WithoutReset(), "has no reset_state"),
        (OwnReset(lambda: 1 / 0), "reset_state failed with ZeroDivisionError"),
        (ResetOnValues(), "reset_state failed with TracerBoolConversionError"),
        (OwnReset(lambda: ()), "reset_state returns a carry of another structure"),
        (FailingStart(), "initialize_state.* failed with OSError: the file"),
        (GrowingStart(), "2 and 3 environments carries of different structure"),
        (HalfPrecisionCarry(), "carry.trace has dtype bfloat16"),
        (Answers(lambda y: {"arm": y.astype(jp.bfloat16)}), "action.arm has dtype bfloat16"),
        (Answers(lambda y: {"arm": y, "grip": 1.0}), "action.grip has shape"),
        (Answers(lambda y: jp.ones((y.shape[0], 2))), "the action is a constant"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_become_a_step_is_refused_with_what_to_change(network, message):
    with pytest.raises(NetworkError, match=message):
        build_step(network, OBS)


def test_a_network_whose_reset_fails_is_no_parity_failure_but_an_error(exported):
    with pytest.raises(NetworkError, match="has no reset_state"):
        verify_parity(exported("mlp").bundle, WithoutReset(), steps=3, write=False)
