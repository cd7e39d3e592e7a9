"""Our ONNX files beside those of jax2onnx: nodes, bytes, time per step.

    pip install --editable '.[all]' jax2onnx
    python benchmarks/onnx_against_peers.py

Both export the same deterministic step, without critic and sampling. jax2onnx gets it in two
forms, since it would not remove anything by itself: `network`, the step with the network's own ring
buffers, constants folded and dead code removed; and `step`, our simplified one with delays in time
order, which is as far as our passes are common to all formats. It gets both for batch 1 only, which
spares it every question of shape; our file takes any batch. The files run in one process on one
thread at batch 1, in turn 25 steps each and in another order each time, so that the machine's noise
meets all of them alike; once with `run`, where handing arrays over costs as much as a small
network, and once with bound memory. Before that the outputs of all are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import networks
import numpy as np
import onnxruntime
from jax.extend import core as jcore

from export.formats.onnx import convert
from export.network_copy import reference_copy
from export.step import build_step, observation_spec
from export.trace import trace_step
from nnx_ppo.cli.step_timing import back_to_back

WARM_UP_STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=5000, help="timed steps of each file [5000]")
    parser.add_argument("--case", action="append", choices=list(networks.CASES), help="[all]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    results = {
        case: compare(case, arguments.steps) for case in arguments.case or list(networks.CASES)
    }
    print(json.dumps(results, indent=2) if arguments.json else as_table(results))


def compare(case: str, steps: int) -> dict[str, dict[str, Any]]:
    """Exports one case in all three ways and times the files in turn."""
    network, observation = networks.build(case)
    makers: dict[str, Callable[[], bytes]] = {
        "ours": lambda: convert(build_step(network, observation)).SerializeToString(),
        "jax2onnx, step": lambda: peer_file(build_step(network, observation, batch_size=1).closed),
        "jax2onnx, network": lambda: peer_file(traced_network(network, observation)),
    }
    rows: dict[str, dict[str, Any]] = {}
    steppers: dict[str, Stepper] = {}
    for name, make in makers.items():
        start = time.perf_counter()
        try:
            model = make()
        except Exception as error:  # A peer's failure is a result.
            rows[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"}
            continue
        seconds = time.perf_counter() - start
        steppers[name] = Stepper(model)
        rows[name] = {"nodes": node_count(model), "bytes": len(model), "export_s": seconds}
    reference = steppers["ours"].run()[0]
    for name, step in steppers.items():
        # The first output is the action; the carries of the network's own layout differ in form.
        rows[name]["difference"] = float(np.max(np.abs(step.run()[0] - reference)))
    ways: dict[str, dict[str, Callable[[Any], Any]]] = {
        "run": {name: step.run for name, step in steppers.items()},
        "bound": {name: step.run_bound for name, step in steppers.items()},
    }
    for way, calls in ways.items():
        back_to_back(calls, [None], WARM_UP_STEPS)
        for name, times in back_to_back(calls, [None], steps).items():
            rows[name][way] = {
                "median_us": float(np.median(times.wall_s) * 1e6),
                "p99_us": float(np.percentile(times.wall_s, 99) * 1e6),
            }
    return rows


def traced_network(network: Any, observation: Any) -> jcore.ClosedJaxpr:
    """Returns the step with the network's own carry, simplified as ours is before any format."""
    copy = reference_copy(network)
    rows = jax.tree.map(lambda leaf: leaf[0], copy.initialize_state(1))
    return trace_step(copy, rows, observation_spec(observation), batch_size=1).closed


def peer_file(closed: jcore.ClosedJaxpr) -> bytes:
    """Returns the ONNX file that jax2onnx makes of a jaxpr."""
    from jax2onnx import to_onnx

    function = jcore.jaxpr_as_fun(closed)
    specs = [
        jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)
        for variable in closed.jaxpr.invars
    ]
    return to_onnx(function, inputs=specs).SerializeToString()


def node_count(model: bytes) -> int:
    """Returns the number of nodes, those inside functions and subgraphs included."""
    import onnx

    def count(nodes: Any) -> int:
        return sum(
            1 + sum(count(a.g.node) for a in node.attribute if a.HasField("g")) for node in nodes
        )

    loaded = onnx.load_from_string(model)
    return count(loaded.graph.node) + sum(count(function.node) for function in loaded.functions)


class Stepper:
    """Runs a file on fixed inputs of batch 1: `run` as most do, `run_bound` as a robot should.

    The first hands over arrays and takes new ones at each step, which is most of what a small
    network's step costs; the second has ONNX Runtime read and write the same memory each time.
    """

    def __init__(self, model: bytes):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        generator = np.random.default_rng(1)
        self._feeds = {}
        for port in self._session.get_inputs():
            shape = [size if isinstance(size, int) else 1 for size in port.shape]
            dtype = {"tensor(float)": np.float32, "tensor(int32)": np.int32}[port.type]
            # Carries start at zero, which every layout of them agrees on; observations do not.
            is_observation = len(self._feeds) == len(self._session.get_inputs()) - 1
            value = generator.normal(size=shape) if is_observation else np.zeros(shape)
            self._feeds[port.name] = value.astype(dtype)
        self._binding = self._session.io_binding()
        outputs = zip(self._session.get_outputs(), self.run(), strict=True)
        self._memory = [
            *self._bound(self._binding.bind_ortvalue_input, self._feeds),
            *self._bound(self._binding.bind_ortvalue_output, {port.name: a for port, a in outputs}),
        ]

    def run(self, _: Any = None) -> list[Any]:
        return self._session.run(None, self._feeds)

    def run_bound(self, _: Any = None) -> None:
        self._session.run_with_iobinding(self._binding)

    @staticmethod
    def _bound(bind: Callable[[str, Any], None], arrays: dict[str, np.ndarray]) -> list[Any]:
        values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()
        }
        for name, value in values.items():
            bind(name, value)
        return list(values.values())


def as_table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Returns the results as text, with our median as a share of each other's."""
    lines = [
        f"onnxruntime {onnxruntime.__version__}, one thread, batch 1; median / p99 in microseconds,"
        " and ours as a share of that median",
        f"{'case':<23}{'file':<19}{'nodes':>6}{'bytes':>10}{'export':>9}{'run':>16}{'share':>7}"
        f"{'bound':>16}{'share':>7}{'differs':>10}",
    ]
    for case, rows in results.items():
        for name, row in rows.items():
            if "failed" in row:
                lines.append(f"{case:<23}{name:<19}{row['failed']}")
                continue
            line = (
                f"{case:<23}{name:<19}{row['nodes']:>6}{row['bytes']:>10}{row['export_s']:>7.1f} s"
            )
            for way in ("run", "bound"):
                median, p99 = row[way]["median_us"], row[way]["p99_us"]
                line += (
                    f"{median:>8.1f} /{p99:>6.1f}{rows['ours'][way]['median_us'] / median:>7.2f}"
                )
            lines.append(f"{line}{row['difference']:>10.1e}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
