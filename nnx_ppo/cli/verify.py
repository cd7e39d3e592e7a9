"""Prove that a bundle acts as the network that it was made from.

Every action and carry leaf of every step is compared with the network under jax.jit, in each
format, with resets in the middle, at several batch sizes. The report goes into the bundle. Exit
status 1 if a leaf strays further than its bound.
"""

import argparse
from pathlib import Path

from nnx_ppo.cli.checkpoints import add_network_options, checkpoint_directory, network_of
from nnx_ppo.cli.output import Output

EXAMPLES = """examples:
  nnx-ppo verify policy/ --checkpoint runs/swing_up
  nnx-ppo verify policy/ --network my_robot.nets:load_policy --steps 5000 --batch-sizes 1,8 --json
  nnx-ppo verify policy/ --checkpoint runs/swing_up --artefacts onnx --bounds onnx=1e-4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        help="what it was made from: a checkpoint or a run's directory",
    )
    parser.add_argument("--steps", type=int, default=1000, help="steps of the trajectory [1000]")
    parser.add_argument(
        "--batch-sizes",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=None,
        metavar="N,...",
        help="batch sizes to compare at [1,3,64; the bundle's own if it takes only one]",
    )
    parser.add_argument(
        "--artefacts",
        type=lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
        metavar="NAME,...",
        help="what to compare, such as onnx,saved_model [all that the bundle has]",
    )
    parser.add_argument(
        "--bounds",
        type=_bounds,
        default={},
        metavar="NAME=BOUND,...",
        help="absolute bound of an artefact and, added to it, relative bound [stablehlo 2e-6, "
        "all others 1e-5, or what fewer digits in the artefact allow]",
    )
    parser.add_argument(
        "--observation-seed", type=int, default=0, help="seed of the observations [0]"
    )
    parser.add_argument(
        "--no-write", action="store_true", help="leave the report in the bundle as it is"
    )
    parser.add_argument("--report", type=Path, help="write the page here too, also with --no-write")
    add_network_options(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import read_bundle

    fixed = read_bundle(arguments.bundle).manifest.batch_size
    checkpoint = None
    if arguments.checkpoint is not None:
        checkpoint = checkpoint_directory(arguments.checkpoint)
    network = network_of(arguments, checkpoint)

    from export import verify_parity, write_report

    report = verify_parity(
        arguments.bundle,
        network,
        steps=arguments.steps,
        batch_sizes=arguments.batch_sizes or ((1, 3, 64) if fixed is None else (fixed,)),
        runtimes=arguments.artefacts,
        tolerances=arguments.bounds,
        seed=arguments.observation_seed,
        write=not arguments.no_write,
    )
    if arguments.report is not None:
        write_report(read_bundle(arguments.bundle), arguments.report, parity=report)
    if not arguments.no_write:
        output.note(f"report {arguments.bundle / 'report.html'}")
    output.result(report.to_json(), report.summary)
    return 0 if report.passed else 1


def _bounds(text: str) -> dict[str, float]:
    bounds = {}
    for part in text.split(","):
        name, _, bound = part.partition("=")
        try:
            bounds[name.strip()] = float(bound)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{part!r} is not of the form NAME=BOUND, for example onnx=1e-4"
            ) from None
    return bounds
