"""Actions per second and latency of a fleet on a Triton server, batched and one at a time.

    pip install --editable '.[all]' && pip install --no-deps nvidia-pytriton
    python benchmarks/triton_throughput.py

Server and clients are on this machine and share its processors. A network of `networks.py` is
served twice, with batches of up to 64 robots and with batches of one. Robots ask over gRPC, each
anew as soon as it has its action, from several processes:

- one at a time: a single robot, so a single request at any time;
- unbatched: all robots at once, each stepped by itself;
- batched: all robots at once, those that are ready stepped together.

The three take turns, and what is printed is over all rounds: actions per second, median and 99th
percentile of the time from request to action, and the mean number of robots per step.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from serving import FleetSettings, TritonServer, read_bundle, write_model_repository

EXPORT = """
import sys
import networks
from export import export_policy

export_policy(*networks.build(sys.argv[2]), sys.argv[1], formats=("onnx",))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", default="lstm 64", help="a name in networks.py [lstm 64]")
    parser.add_argument("--robots", type=int, default=64, help="robots in all [64]")
    parser.add_argument("--processes", type=int, default=2, help="that they are in [2]")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each [3]")
    parser.add_argument("--duration-s", type=float, default=5.0, help="of each turn [5]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        drive(json.loads(arguments.worker))
        return
    with tempfile.TemporaryDirectory() as directory:
        results = measure(arguments, Path(directory))
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'':16}  {'actions/s':>9}  {'median':>9}  {'p99':>9}  robots per step")
    for name, row in results.items():
        print(
            f"{name:16}  {row['actions_per_s']:9.0f}  {row['median_s'] * 1e3:6.2f} ms  "
            f"{row['p99_s'] * 1e3:6.2f} ms  {row['robots_per_step']:.1f}"
        )


def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, dict[str, float]]:
    """Serve the network and have the three loads take turns."""
    bundle = directory / "bundle"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(
        [sys.executable, "-c", EXPORT, str(bundle), arguments.case],
        check=True,
        cwd=Path(__file__).parent,
        env=environment,
    )
    for name, size in (("single", 1), ("batched", 64)):
        settings = FleetSettings(max_batch_size=size)
        write_model_repository(bundle, directory / "repository", name=name, settings=settings)
    ports = [(p.name, p.shape, p.dtype) for p in read_bundle(bundle).manifest.observation_ports]
    loads = {
        "one at a time": ("batched", 1, 1),
        "unbatched": ("single", arguments.robots, arguments.processes),
        "batched": ("batched", arguments.robots, arguments.processes),
    }
    times: dict[str, list[np.ndarray]] = {name: [] for name in loads}
    counts: dict[str, list[int]] = {name: [0, 0] for name in loads}
    with TritonServer(directory / "repository") as server:
        for turn in range(arguments.rounds):
            for name, (model, robots, processes) in loads.items():
                before = steps_of(server, model)
                times[name] += run_workers(
                    server.addresses.grpc,
                    model,
                    ports,
                    robots=robots,
                    processes=processes,
                    duration_s=arguments.duration_s,
                    first_id=1 + 10000 * turn,
                    directory=directory,
                )
                for index, value in enumerate(steps_of(server, model)):
                    counts[name][index] += value - before[index]
    return {
        name: {
            "actions_per_s": sum(map(len, parts)) / (arguments.rounds * arguments.duration_s),
            "median_s": float(np.median(np.concatenate(parts))),
            "p99_s": float(np.percentile(np.concatenate(parts), 99)),
            "robots_per_step": counts[name][0] / counts[name][1],
        }
        for name, parts in times.items()
    }


def steps_of(server: TritonServer, model: str) -> tuple[int, int]:
    """Requests that a model has answered, and steps that it has made for them."""
    import tritonclient.grpc

    with tritonclient.grpc.InferenceServerClient(server.addresses.grpc) as client:
        (entry,) = client.get_inference_statistics(model).model_stats
    return entry.inference_count, entry.execution_count


def run_workers(
    url: str,
    model: str,
    ports: list[Any],
    *,
    robots: int,
    processes: int,
    duration_s: float,
    first_id: int,
    directory: Path,
) -> list[np.ndarray]:
    """Let processes drive robots at the same time, and return the seconds of all their requests."""
    start_s = time.time() + 2.0
    workers = []
    for index in range(processes):
        ids = list(range(first_id + index, first_id + robots, processes))
        out = directory / f"{index}.npy"
        given = [url, model, ports, ids, start_s, duration_s, str(out)]
        command = [sys.executable, __file__, "--worker", json.dumps(given)]
        workers.append((subprocess.Popen(command), out))
    for worker, _ in workers:
        if worker.wait() != 0:
            raise SystemExit("a client failed")
    return [np.load(out) for _, out in workers]


def drive(given: list[Any]) -> None:
    """Drive robots until the time is over; the work of one client process."""
    import tritonclient.grpc as client
    from tritonclient.utils import np_to_triton_dtype

    url, model, ports, ids, start_s, duration_s, out = given
    tensors = []
    for name, shape, dtype in ports:
        array = np.random.default_rng(0).normal(size=(1, *(shape or [1]))).astype(dtype)
        tensor = client.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    done: queue.SimpleQueue[tuple[int, float, Any]] = queue.SimpleQueue()
    server = client.InferenceServerClient(url)

    def ask(robot: int, *, start: bool = False, end: bool = False) -> None:
        sent_s = time.perf_counter()

        def arrived(result: Any, error: Any) -> None:
            done.put((robot, time.perf_counter() - sent_s, error))

        server.async_infer(
            model, tensors, arrived, sequence_id=robot, sequence_start=start, sequence_end=end
        )

    for robot in ids:
        ask(robot, start=True)
    warm = [done.get() for _ in ids]
    time.sleep(max(0.0, start_s - time.time()))
    end_s = time.perf_counter() + duration_s
    times = []
    for robot, _, _ in warm:
        ask(robot)
    open_requests = len(ids)
    while open_requests:
        robot, took_s, error = done.get()
        if error is not None:
            raise SystemExit(str(error))
        if time.perf_counter() < end_s:
            times.append(took_s)
            ask(robot)
        else:
            open_requests -= 1
    for robot in ids:
        ask(robot, end=True)
    for _ in ids:
        done.get()
    np.save(out, np.asarray(times))
    server.close()


if __name__ == "__main__":
    main()
