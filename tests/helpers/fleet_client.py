"""A process of its own that drives robots through an unmodified tritonclient.

Run as a program: it reads one JSON object from the command line, and writes the actions of all its
robots to a file. The observations depend on seed and robot alone, so that a test can make the same.
"""

import json
import sys
from typing import Any

import numpy as np

TYPES = {"bool": "BOOL", "float32": "FP32", "int32": "INT32"}


def observations(ports: list[Any], robot: int, steps: int) -> dict[str, np.ndarray]:
    """[steps, ...] for each port, given as name, shape and dtype."""
    rng = np.random.default_rng([20261201, robot])
    values = {}
    for name, shape, dtype in ports:
        value = rng.normal(size=(steps, *shape))
        values[name] = value < 0 if dtype == "bool" else value.astype(dtype)
    return values


def inputs(client: Any, ports: list[Any], values: dict[str, np.ndarray], step: int) -> list[Any]:
    """What tritonclient sends for one step; a scalar has the shape [1, 1]."""
    tensors = []
    for name, shape, dtype in ports:
        array = values[name][step].reshape(1, *(shape or [1]))
        tensor = client.InferInput(name, array.shape, TYPES[dtype])
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def main(given: dict[str, Any]) -> None:
    ports, steps, robots = given["ports"], given["steps"], given["robots"]
    if given["protocol"] == "grpc":
        import tritonclient.grpc as client

        server = client.InferenceServerClient(given["url"])
    else:
        import tritonclient.http as client

        server = client.InferenceServerClient(given["url"], concurrency=len(robots))
    seen = {robot: observations(ports, robot, steps) for robot in robots}
    shuffled = np.random.default_rng(robots[0])
    actions: dict[str, list[Any]] = {f"{r}/{name}": [] for r in robots for name in given["outputs"]}
    for step in range(steps):
        pending = {}
        for robot in shuffled.permutation(robots):
            options = {
                "sequence_id": int(robot) + 1 if robot % 2 else f"robot-{robot}",
                "sequence_start": step == 0,
                "sequence_end": step == steps - 1,
            }
            tensors = inputs(client, ports, seen[int(robot)], step)
            pending[int(robot)] = ask(client, server, given["model"], tensors, options)
        for robot, answer in pending.items():
            result = answer()
            for name in given["outputs"]:
                actions[f"{robot}/{name}"].append(result.as_numpy(name)[0])
        if step == 0:
            print("started", flush=True)
    np.savez(given["out"], **{name: np.stack(values) for name, values in actions.items()})
    server.close()


def ask(client: Any, server: Any, model: str, tensors: list[Any], options: dict[str, Any]) -> Any:
    """Sends one request without waiting; calling what comes back waits for the answer."""
    if client.__name__.endswith("http"):
        return server.async_infer(model, tensors, **options).get_result
    import queue

    arrived: queue.Queue[Any] = queue.Queue()

    def put(result: Any, error: Any) -> None:
        arrived.put((result, error))

    server.async_infer(model, tensors, put, **options)

    def get() -> Any:
        result, error = arrived.get(timeout=60.0)
        if error is not None:
            raise error
        return result

    return get


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
