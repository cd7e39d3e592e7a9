"""Turn a trained network into a bundle: StableHLO, SavedModel and ONNX with all a robot needs.

The network is rebuilt by the factory that the checkpoint records. One trained elsewhere is named by
--network; without a checkpoint that factory returns it with its weights, and --observation-shapes
says what it observes.
"""

import argparse
from pathlib import Path
from typing import Any

from nnx_ppo.cli.checkpoints import (
    add_network_options,
    checkpoint_directory,
    network_of,
    observation_from_shapes,
)
from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.output import Output, table
from nnx_ppo.cli.references import read_json_object
from serving.overview import byte_size

EXAMPLES = """examples:
  nnx-ppo export runs/swing_up --out policy/
  nnx-ppo export runs/swing_up/step_0000512000 --out policy/ --formats onnx --batch-size 1
  nnx-ppo export --network my_robot.nets:load_policy --observation-shapes '{"joints": [12]}' \\
      --control-rate-hz 50 --metadata @robot.json --out policy/
"""

FORMATS = ("stablehlo", "saved_model", "onnx")
ALL_FORMATS = (*FORMATS, "litert", "c")
FLAVOURS = ("portable", "xla")
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        type=Path,
        nargs="?",
        help="a checkpoint, or a run's directory for its last complete one",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the new bundle")
    parser.add_argument("--overwrite", action="store_true", help="replace a bundle that is there")
    parser.add_argument(
        "--formats",
        type=lambda text: _names(text, ALL_FORMATS),
        default=FORMATS,
        metavar="NAME,...",
        help=f"which formats to write, of {','.join(ALL_FORMATS)} [{','.join(FORMATS)}]",
    )
    parser.add_argument(
        "--saved-model-flavours",
        type=lambda text: _names(text, FLAVOURS),
        default=FLAVOURS,
        metavar="NAME,...",
        help=f"portable: plain operations; xla: one compiled call [{','.join(FLAVOURS)}]",
    )
    parser.add_argument("--batch-size", type=int, help="the only batch size it takes [any]")
    parser.add_argument("--opset", type=int, help="ONNX opset [the exporter's choice]")
    parser.add_argument(
        "--onnx-external-data",
        action="store_true",
        default=None,
        help="keep the weights of the ONNX model in a file beside it",
    )
    parser.add_argument(
        "--onnx-weights",
        choices=("float32", "float16"),
        help="how weights of the ONNX model are stored; it computes in float32 [float32]",
    )
    parser.add_argument(
        "--onnx-int8-min-weights",
        type=int,
        metavar="N",
        help="compute layers of the ONNX model with at least N weights in int8 [none]",
    )
    parser.add_argument("--name", help="name of the policy [that of the directory]")
    parser.add_argument(
        "--control-rate-hz", type=float, help="rate of the control loop [the environment's]"
    )
    parser.add_argument(
        "--metadata",
        default="{}",
        metavar="JSON",
        help="what the robot has to know (joint_names, action_scale, safe_action, ...), a JSON "
        "object or @FILE",
    )
    parser.add_argument(
        "--extra-outputs",
        default="",
        metavar="NAME,...",
        help="outputs beside the action: value, distribution, activations.PATH; a name that does "
        "not exist lists those that do",
    )
    parser.add_argument(
        "--disable-passes",
        default="",
        metavar="NAME,...",
        help="simplifications to leave out, such as fold_scales; a wrong name lists them all",
    )
    parser.add_argument(
        "--reset-input",
        action="store_true",
        help="give the artefacts an input of booleans that starts rows afresh",
    )
    parser.add_argument(
        "--apply-action-scaling",
        action="store_true",
        help="have the step itself apply action_scale, action_offset, action_low and action_high "
        "of the metadata [the robot applies them]",
    )
    parser.add_argument(
        "--stablehlo-platforms",
        type=lambda text: _names(text, PLATFORMS),
        default=("cpu",),
        metavar="NAME,...",
        help=f"platforms that one StableHLO file runs on, of {','.join(PLATFORMS)} [cpu]",
    )
    parser.add_argument(
        "--observation-shapes",
        metavar="JSON",
        help='what the policy observes, for one without a checkpoint: [8] or {"arm": [4]}',
    )
    add_network_options(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    metadata = read_json_object(arguments.metadata, option="--metadata")
    # Before any work: a target that will be refused is refused at once.
    if arguments.out.exists() and not arguments.overwrite:
        raise CommandError(f"{arguments.out} exists; give another --out, or --overwrite")
    checkpoint = None
    if arguments.checkpoint is not None:
        checkpoint = checkpoint_directory(arguments.checkpoint)
    network = network_of(arguments, checkpoint)
    observation, rate_hz = _observation_and_rate(arguments, checkpoint)

    from export import OnnxOptions, export_policy

    given = {
        "opset": arguments.opset,
        "external_data": arguments.onnx_external_data,
        "weights": arguments.onnx_weights,
        "int8_min_weights": arguments.onnx_int8_min_weights,
    }
    onnx = OnnxOptions(**{key: value for key, value in given.items() if value is not None})
    bundle = export_policy(
        network,
        observation,
        arguments.out,
        formats=arguments.formats,
        batch_size=arguments.batch_size,
        control_rate_hz=rate_hz,
        metadata=metadata,
        extra_outputs=tuple(name for name in arguments.extra_outputs.split(",") if name),
        reset_input=arguments.reset_input,
        apply_action_scaling=arguments.apply_action_scaling,
        stablehlo_platforms=arguments.stablehlo_platforms,
        name=arguments.name,
        overwrite=arguments.overwrite,
        saved_model_flavours=arguments.saved_model_flavours,
        disabled_passes=tuple(name for name in arguments.disable_passes.split(",") if name),
        onnx=onnx,
    )
    artefacts = {
        key: sum(file.size for file in artefact.files)
        for key, artefact in bundle.manifest.artefacts.items()
    }
    data = {
        "bundle": str(bundle.path),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "artefacts": artefacts,
        "report": str(bundle.path / "report.html"),
    }
    rows = [(key, byte_size(n_bytes)) for key, n_bytes in artefacts.items()]
    output.result(
        data, f"{table(('artefact', 'size'), rows)}\nbundle {bundle.path}\nreport {data['report']}"
    )
    return 0


def _observation_and_rate(
    arguments: argparse.Namespace, checkpoint: Path | None
) -> tuple[Any, float | None]:
    """Take the observation's structure and control rate from the options, else the checkpoint."""
    rate_hz = arguments.control_rate_hz
    if checkpoint is None:
        if arguments.observation_shapes is None:
            raise CommandError(
                "without a checkpoint --observation-shapes has to say what the policy observes, "
                "for example --observation-shapes '[8]'"
            )
        return observation_from_shapes(arguments.observation_shapes), rate_hz
    from nnx_ppo.algorithms.checkpointing import read_checkpoint_record

    record = read_checkpoint_record(checkpoint)
    if rate_hz is None and record.environment_factory is not None:
        rate_hz = getattr(record.environment_factory.build(), "control_rate_hz", None)
    if arguments.observation_shapes is not None:
        return observation_from_shapes(arguments.observation_shapes), rate_hz
    return record.observation, rate_hz


def _names(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
    if not names:
        raise argparse.ArgumentTypeError(f"names none of {', '.join(known)}")
    return names
