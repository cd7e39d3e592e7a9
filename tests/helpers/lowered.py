"""Run a JAX function through the rules, in TensorFlow and in onnxruntime, beside JAX itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import onnxruntime
import primitive_coverage

from export.formats.onnx import convert
from export.formats.tensorflow_function import portable_function
from export.step import build_step
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from serving import flush_denormals


class FunctionPolicy(StatefulModule):
    """A network that is one function of its observation."""

    def __init__(self, function, modules=None):
        self.function = function
        self.modules = modules

    def __call__(self, module_state, obs, rollout_extras=None):
        output = self.function(self.modules, obs) if self.modules else self.function(obs)
        return StatefulModuleOutput((), output, jp.array(0.0), {})


def run_everywhere(function, observation, **options):
    """Return the outputs of `function` by JAX, by the portable graph and by ONNX.

    Args:
        function: Called with the batched observation (after `modules`, if given).
        observation: Tree of arrays `[B, ...]`.
        **options: `modules`, a module passed to `function` first, so that its weights are weights;
            `batch_size` and `disabled_passes` as for `export_policy`.
    """
    case = _Case(function, observation, **options)
    return case.by_jax(), case.by_tensorflow(), case.by_onnx()


class _Case:
    """A function and what it is called with, built once and run in several ways."""

    def __init__(self, function, observation, modules=None, **options):
        self.network = FunctionPolicy(function, modules)
        self.observation = observation
        example = jax.tree.map(lambda leaf: leaf[0], observation)
        self.step = build_step(self.network, example, **options)
        leaves = dict(zip(_names(observation), jax.tree.leaves(observation), strict=True))
        self.inputs = [np.asarray(leaves[port.name]) for port in self.step.observation_ports]

    def by_jax(self):
        call = jax.jit(network_call(self.network))
        return [np.asarray(leaf) for leaf in jax.tree.leaves(call(self.observation))]

    def by_tensorflow(self):
        results: Any = portable_function(self.step)(*self.inputs)
        return [results[name].numpy() for name in self.step.output_names]

    def by_onnx(self):
        session = _session(convert(self.step).SerializeToString())
        ports = zip(self.step.inputs, self.inputs, strict=True)
        # As in a control loop, and as JAX and TensorFlow do by themselves.
        with flush_denormals():
            return session.run(self.step.output_names, {port.name: value for port, value in ports})


def _session(model: bytes) -> onnxruntime.InferenceSession:
    """Load a model with subnormal numbers flushed, as serving does.

    onnxruntime leaves that mode on in the thread that creates the session.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(
            onnxruntime.InferenceSession, model, options, providers=["CPUExecutionProvider"]
        ).result()


def network_call(network):
    return lambda observation: network((), observation).output


def _names(observation: Any) -> list[str]:
    from export.structure import leaf_names, paths_of

    return leaf_names("obs", paths_of(observation, "observation"))


def assert_same_everywhere(
    function,
    observation,
    *,
    atol: Any = 2e-6,
    rtol: Any = 2e-6,
    formats: Sequence[str] = primitive_coverage.PORTABLE_FORMATS,
    **options,
):
    """Assert that all agree, and note which primitives were compared; returns JAX's outputs.

    Args:
        function: As for `run_everywhere`.
        observation: Tree of arrays `[B, ...]`.
        atol: Absolute tolerance, or a list of one for each output.
        rtol: Relative tolerance, likewise.
        formats: Those to compare: one where the other refuses the case.
        **options: As for `run_everywhere`.
    """
    case = _Case(function, observation, **options)
    expected = case.by_jax()
    run = {"saved_model": case.by_tensorflow, "onnx": case.by_onnx}
    for format in formats:
        outputs = run[format]()
        for index, (e, o) in enumerate(zip(expected, outputs, strict=True)):
            assert o.dtype == e.dtype
            np.testing.assert_allclose(
                o,
                e,
                atol=atol[index] if isinstance(atol, list) else atol,
                rtol=rtol[index] if isinstance(rtol, list) else rtol,
                err_msg=f"{format}, output {index}",
            )
    primitive_coverage.record(case.step, case.inputs, formats)
    return expected
