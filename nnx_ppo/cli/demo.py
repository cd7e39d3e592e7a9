"""The whole path on one machine: train, export, prove parity, act.

Trains a population graph with delayed connections, and a memoryless network of the same size for
comparison, on a swing-up task whose velocities are hidden and whose observations come late. Exports
the graph in every format, compares each with the network in JAX, and lets the ONNX file swing up
the simulated pole at its control rate: the simulator in a process of its own, the policy in another
that holds neither JAX nor TensorFlow. Exit status 1 if parity fails.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from nnx_ppo.cli import demo_setup
from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.output import Output, microseconds, table
from nnx_ppo.cli.plant import EnvironmentPlant
from nnx_ppo.cli.processes import act, bench, simulator
from nnx_ppo.cli.training import Trained, environment_record, network_record, train
from serving.overview import byte_size

EXAMPLES = """examples:
  nnx-ppo demo
  nnx-ppo demo --out runs/demo --total-steps 1e6 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, help="directory for everything it writes [runs/demo-DATE-TIME]"
    )
    parser.add_argument(
        "--total-steps",
        type=lambda text: int(float(text)),
        default=demo_setup.TOTAL_STEPS,
        help=f"environment steps of each training [{demo_setup.TOTAL_STEPS}]",
    )
    parser.add_argument("--seed", type=int, default=demo_setup.SEED, help="seed of everything")
    parser.add_argument(
        "--parity-steps", type=int, default=1000, help="steps of the comparison [1000]"
    )
    parser.add_argument(
        "--bench-steps", type=int, default=1000, help="steps timed in each format [1000]"
    )
    parser.add_argument(
        "--duration-s", type=float, default=10.0, help="seconds that the policy acts [10]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    # Everything that may be missing is asked for now, not after minutes of training.
    import jax  # noqa: F401

    from export import export_policy, verify_parity

    out = arguments.out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    if out.exists():
        raise CommandError(f"{out} exists; give another --out")
    environment_factory = environment_record(demo_setup.ENVIRONMENT, {})
    environment = environment_factory.build()
    config = demo_setup.demo_config(
        arguments.total_steps, arguments.seed, environment.episode_length
    )
    trained: dict[str, Trained] = {}
    for name, factory in (("graph", demo_setup.GRAPH), ("memoryless", demo_setup.MEMORYLESS)):
        network_factory = network_record(factory, {}, environment, arguments.seed)
        trained[name] = train(
            out / name,
            config,
            environment_factory,
            network_factory,
            label=f"training the {name} policy",
            note=output.note,
        )
    policy = trained["graph"].networks
    output.note("exporting to StableHLO, SavedModel and ONNX")
    bundle = export_policy(
        policy,
        example_observation(environment),
        out / "policy",
        control_rate_hz=environment.control_rate_hz,
        name="swing_up",
    )
    output.note(f"comparing {arguments.parity_steps} steps of each format with the network")
    parity = verify_parity(bundle.path, policy, steps=arguments.parity_steps)
    output.note("timing each format")
    timings = bench(bundle.path, steps=arguments.bench_steps)
    output.note(f"acting for {arguments.duration_s:g} s at {environment.control_rate_hz:g} Hz")
    with simulator(demo_setup.ENVIRONMENT, seed=arguments.seed) as address:
        acted = act(
            bundle.path,
            address,
            rate_hz=environment.control_rate_hz,
            duration_s=arguments.duration_s,
        )
    if any(acted["imported"].values()):
        raise CommandError(f"the acting process imported a training library: {acted['imported']}")
    acted_return = sum(acted["plant"]["returns"]) + acted["plant"]["unfinished_return"]
    jax_return = return_in_jax(
        environment, policy, seed=arguments.seed, steps=acted["loop"]["steps"]
    )
    formats = {
        name: {
            "size": sum(file.size for file in artefact.files),
            "max_abs_error": parity.worst_error(name),
            **{key: timings[name][key] for key in ("median_s", "p99_s")},
        }
        for name, artefact in bundle.manifest.artefacts.items()
    }
    data = {
        "returns": {name: result.episode_return for name, result in trained.items()},
        "training_seconds": {name: result.seconds for name, result in trained.items()},
        "parity_passed": parity.passed,
        "formats": formats,
        "loop": {**acted["loop"], "return": acted_return, "jax_return": jax_return},
        "imported_by_the_acting_process": acted["imported"],
        "bundle": str(bundle.path),
        "report": str(bundle.path / "report.html"),
    }
    output.result(data, as_text(data))
    return 0 if parity.passed else 1


def example_observation(environment: Any) -> Any:
    """The structure of an environment's observation, without running it."""
    import jax

    return jax.eval_shape(environment.reset, jax.random.key(0)).obs


def return_in_jax(environment: Any, network: Any, *, seed: int, steps: int) -> float:
    """Let the network itself act, in JAX, in the episodes that the simulator plays with this seed.

    Returns:
        The sum of rewards over `steps` steps, however many episodes they are.
    """
    import jax
    from flax import nnx

    network = nnx.clone(network)
    network.eval()
    graph, state = nnx.split(network)

    @jax.jit
    def step(carry: Any, observation: Any) -> Any:
        module = nnx.merge(graph, state, copy=True)
        result = module(carry, jax.tree.map(lambda leaf: leaf[None], observation))
        return result.next_state, jax.tree.map(lambda leaf: leaf[0], result.output.actions)

    plant = EnvironmentPlant(environment, seed=seed, episode_length=environment.episode_length)
    observation, carry, total = plant.reset(), network.initialize_state(1), 0.0
    for _ in range(steps):
        carry, action = step(carry, observation)
        observation, reward, ended = plant.step(action)
        total += reward
        if ended:
            observation, carry = plant.reset(), network.initialize_state(1)
    return total


def as_text(data: dict[str, Any]) -> str:
    """The demo's one table, with the two returns before and the paths after it."""
    loop = data["loop"]
    headers = ("format", "size", "worst error", "median", "p99")
    rows = [
        (
            name,
            byte_size(row["size"]),
            f"{row['max_abs_error']:.1e}",
            microseconds(row["median_s"]),
            microseconds(row["p99_s"]),
        )
        for name, row in data["formats"].items()
    ]
    rows += [
        ("", "", "", "", ""),
        ("control loop (onnx)", "rate", "misses", "return", "return in JAX"),
        (
            f"asked for {loop['rate_hz']:g} Hz",
            f"{loop['achieved_rate_hz']:.2f} Hz",
            str(loop["misses"]),
            f"{loop['return']:.1f}",
            f"{loop['jax_return']:.1f}",
        ),
    ]
    returns = data["returns"]
    absent = [name for name, there in data["imported_by_the_acting_process"].items() if not there]
    return "\n".join(
        [
            f"return of the graph policy {returns['graph']:.1f}, of the memoryless one of its size "
            f"{returns['memoryless']:.1f}",
            "parity " + ("passed" if data["parity_passed"] else "FAILED"),
            f"the acting process has imported none of {', '.join(absent)}",
            "",
            table(headers, rows),
            "",
            f"bundle {data['bundle']}",
            f"report {data['report']}",
        ]
    )
