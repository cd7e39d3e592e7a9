"""Time of one step of a session, beside what ONNX Runtime itself takes.

    pip install --editable '.[all]'
    python benchmarks/step_latency.py

For each network of `networks.py` one bundle, exported by another process. In this one, on one
thread and in turn, in another order each time: ONNX Runtime's `run` with arrays and with bound
memory (the same memory in each step, so it feeds back no carry), and a session of ours on each
runtime. All do batch 1. First without JAX and TensorFlow in the process, as on a robot, then with
every runtime. Both back to back, in runs of 25 steps so that caches are warm, and paced: each step
after a pause that ends in a walk through a megabyte. Prints median and 99th percentile in
microseconds.

`--memory STEPS` steps a session that many times and prints how the resident set grew after the
first thousand, and what Python allocated per step and kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import onnxruntime

from nnx_ppo.cli.step_timing import back_to_back, paced
from serving import load_policy, read_bundle
from serving.bundle import Bundle

FORMATS = "onnx,c,litert,stablehlo,saved_model"
HEAVY = ("stablehlo", "saved_model", "saved_model_xla")
"""Runtimes that bring JAX or TensorFlow into the process."""
EXPORT = """
import sys
import networks
from export import export_policy

directory, formats, *cases = sys.argv[1:]
for case in cases or networks.CASES:
    export_policy(*networks.build(case), f"{directory}/{case}", formats=formats.split(","))
"""
WARM_UP_STEPS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--steps", type=int, default=3000, help="steps of each, back to back [3000]"
    )
    parser.add_argument("--ticks", type=int, default=400, help="steps paced [400]")
    parser.add_argument("--rate-hz", type=float, default=200.0, help="pace in Hz [200]")
    parser.add_argument("--case", action="append", default=[], help="a name in networks.py [all]")
    parser.add_argument(
        "--formats", default=FORMATS, metavar="NAME,...", help=f"what to compare [{FORMATS}]"
    )
    parser.add_argument("--memory", type=int, metavar="STEPS", help="measure memory, not time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", EXPORT, directory, arguments.formats, *arguments.case]
        subprocess.run(command, check=True, cwd=Path(__file__).parent)
        bundles = [read_bundle(path) for path in sorted(Path(directory).iterdir())]
        for heavy in (False, True):
            for bundle in bundles:
                runtimes = [
                    name for name in bundle.manifest.artefacts if heavy or name not in HEAVY
                ]
                if heavy and not set(runtimes) & set(HEAVY):
                    continue
                key = bundle.path.name + (", all runtimes" if heavy else "")
                if arguments.memory:
                    results[key] = {
                        name: memory(bundle, name, arguments.memory)
                        for name in runtimes
                        if (name in HEAVY) == heavy
                    }
                else:
                    results[key] = compare(bundle, runtimes, arguments)
    print(json.dumps(results, indent=2) if arguments.json else as_table(results, arguments))


def compare(
    bundle: Bundle, runtimes: list[str], arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns median and 99th percentile of each way to step, back to back and paced."""
    observations = golden_observations(bundle)
    steppers = raw_steppers(bundle, observations)
    for name in runtimes:
        session = load_policy(bundle, runtime=name).session()
        steppers[f"session, {name}"] = session.step
    for step in steppers.values():
        for index in range(WARM_UP_STEPS):
            step(observations[index % len(observations)])
    gc.collect()
    gc.freeze()
    other = np.zeros(1 << 18, np.float32)  # a megabyte to walk through, as a robot's other work

    def other_work() -> None:
        np.add(other, 1.0, out=other)

    pace = arguments.rate_hz
    timings = {
        "back_to_back": back_to_back(steppers, observations, arguments.steps),
        "paced": paced(steppers, observations, arguments.ticks, pace, other_work=other_work),
    }
    gc.unfreeze()
    return {
        name: {
            way: {
                "median_us": float(np.median(times[name].wall_s) * 1e6),
                "p99_us": float(np.percentile(times[name].wall_s, 99) * 1e6),
                "cpu_us": times[name].cpu_s * 1e6,
            }
            for way, times in timings.items()
        }
        for name in steppers
    }


def golden_observations(bundle: Bundle) -> list[np.ndarray]:
    """Returns the observations of the first row of the recorded trajectory, one array per step."""
    (port,) = bundle.manifest.observation_ports
    return list(bundle.golden[port.name][:, 0])


def raw_steppers(bundle: Bundle, observations: list[np.ndarray]) -> dict[str, Callable[..., Any]]:
    """Returns ONNX Runtime's two ways to run the same file, with the settings of our sessions."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = onnxruntime.InferenceSession(
        str(bundle.artefact_path("onnx")), options, providers=["CPUExecutionProvider"]
    )
    feeds = {name: value[None].copy() for name, value in bundle.initial_carry.items()}
    (port,) = bundle.manifest.observation_ports
    feeds[port.name] = observations[0][None].copy()
    binding = session.io_binding()
    memory = []
    for name, array in feeds.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(name, value)
        memory.append(value)
    for output, array in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_output(output.name, value)
        memory.append(value)

    def run(observation: np.ndarray) -> Any:
        return session.run(None, feeds)

    def bound(observation: np.ndarray, keep: Any = memory) -> Any:
        return session.run_with_iobinding(binding)

    return {"ONNX Runtime, run": run, "ONNX Runtime, bound": bound}


def memory(bundle: Bundle, runtime: str, steps: int) -> dict[str, float]:
    """Returns growth of the resident set in KiB after 1,000 steps, and bytes that Python kept."""
    session = load_policy(bundle, runtime=runtime).session()
    observations = golden_observations(bundle)
    for index in range(1000):
        session.step(observations[index % len(observations)])
    before = resident_kib()
    for index in range(steps):
        session.step(observations[index % len(observations)])
    grown = resident_kib() - before
    gc.collect()
    tracemalloc.start()
    action = session.step(observations[0])
    first, _ = tracemalloc.get_traced_memory()
    for index in range(1000):
        action = session.step(observations[index % len(observations)])
    last, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    held, _ = tracemalloc.get_traced_memory()
    session.step(observations[0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "resident_growth_kib": grown,
        "kept_per_step_bytes": (last - first) / 1000.0,
        "peak_in_step_bytes": peak - held,
        "action_bytes": action.nbytes,
    }


def resident_kib() -> int:
    """Returns the resident set of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])


def as_table(results: dict[str, dict[str, dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """Returns the results as text, with times as a share of ONNX Runtime's `run`."""
    lines = []
    if arguments.memory:
        lines.append(f"growth over {arguments.memory:,} steps after the first thousand")
        lines.append(f"{'case':<24}{'runtime':<18}{'resident':>12}{'kept/step':>12}{'peak':>9}")
        for case, rows in results.items():
            for name, row in rows.items():
                lines.append(
                    f"{case:<24}{name:<18}{row['resident_growth_kib']:>8} KiB"
                    f"{row['kept_per_step_bytes']:>10.2f} B{row['peak_in_step_bytes']:>7} B"
                )
        return "\n".join(lines)
    lines.append(
        f"onnxruntime {onnxruntime.__version__}, one thread, batch 1; median / p99 in microseconds"
        f" and the median as a share of run's; paced at {arguments.rate_hz:g} Hz"
    )
    lines.append(f"{'case':<24}{'':<26}{'back to back':>18}{'share':>7}{'paced':>18}{'share':>7}")
    for case, rows in results.items():
        base = rows["ONNX Runtime, run"]
        for name, row in rows.items():
            line = f"{case:<24}{name:<26}"
            for way in ("back_to_back", "paced"):
                median, p99 = row[way]["median_us"], row[way]["p99_us"]
                line += f"{median:>9.1f} /{p99:>7.1f}{median / base[way]['median_us']:>7.2f}"
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
