"""Run a JAX function through the rules, in TensorFlow and in onnxruntime, beside JAX itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import onnxruntime

from export.formats.onnx import convert
from export.formats.tensorflow_function import portable_function
from export.step import build_step
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput


class FunctionPolicy(StatefulModule):
    """A network that is one function of its observation."""

    def __init__(self, function, modules=None):
        self.function = function
        self.modules = modules

    def __call__(self, module_state, obs, rollout_extras=None):
        output = self.function(self.modules, obs) if self.modules else self.function(obs)
        return StatefulModuleOutput((), output, jp.array(0.0), {})


def run_everywhere(function, observation, *, modules=None, batch_size=None):
    """Return the outputs of `function` by JAX, by the portable graph and by ONNX.

    Args:
        function: Called with the batched observation (after `modules`, if given).
        observation: Tree of arrays `[B, ...]`.
        modules: Module passed to `function` first, so that its weights are weights.
        batch_size: As for `export_policy`.
    """
    network = FunctionPolicy(function, modules)
    example = jax.tree.map(lambda leaf: leaf[0], observation)
    step = build_step(network, example, batch_size=batch_size)
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(network_call(network))(observation))]
    leaves = dict(zip(_names(observation), jax.tree.leaves(observation), strict=True))
    inputs = [np.asarray(leaves[port.name]) for port in step.observation_ports]
    portable: Any = portable_function(step)(*inputs)
    session = onnxruntime.InferenceSession(
        convert(step).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feed = {port.name: value for port, value in zip(step.inputs, inputs, strict=True)}
    onnx: list[Any] = list(session.run(step.output_names, feed))
    return expected, [portable[name].numpy() for name in step.output_names], onnx


def network_call(network):
    return lambda observation: network((), observation).output


def _names(observation: Any) -> list[str]:
    from export.structure import leaf_names, paths_of

    return leaf_names("obs", paths_of(observation, "observation"))


def assert_same_everywhere(function, observation, *, atol=2e-6, rtol=2e-6, **options):
    """Assert that all three agree; returns JAX's outputs."""
    expected, portable, onnx = run_everywhere(function, observation, **options)
    for e, p, o in zip(expected, portable, onnx, strict=True):
        assert p.dtype == e.dtype and o.dtype == e.dtype
        np.testing.assert_allclose(p, e, atol=atol, rtol=rtol, err_msg="portable")
        np.testing.assert_allclose(o, e, atol=atol, rtol=rtol, err_msg="onnx")
    return expected
