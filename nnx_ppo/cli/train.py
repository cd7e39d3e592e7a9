"""Train a policy with PPO, writing checkpoints that `nnx-ppo export` turns into a bundle.

The options under "PPO", "evaluation" and "run" are the fields of the library's configuration
classes, with the same defaults. A run that was interrupted goes on with --resume from its last
complete checkpoint.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.config_options import add_config_options, config_overrides
from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.output import Output
from nnx_ppo.cli.references import read_json_object, search_working_directory
from nnx_ppo.cli.training import DEFAULT_NETWORK, environment_record, network_record, train

if TYPE_CHECKING:
    from nnx_ppo.algorithms.config import TrainConfig

EXAMPLES = """examples:
  nnx-ppo train --environment swing_up --out runs/swing_up
  nnx-ppo train --out runs/swing_up --resume --total-steps 2e6
  nnx-ppo train --environment my_robot.sim:make_env --network my_robot.nets:make_policy \\
      --network-arguments '{"hidden_sizes": [128, 128]}' --learning-rate 3e-4 --out runs/mine
"""

EVALUATION = "eval"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig

    parser.add_argument(
        "--out", type=Path, required=True, help="directory of the run's checkpoints"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last complete checkpoint in --out, with its environment, network and "
        "settings; options given here override the settings",
    )
    parser.add_argument(
        "--environment",
        metavar="NAME",
        help="a built-in environment, or package.module:factory",
    )
    parser.add_argument(
        "--environment-arguments",
        default="{}",
        metavar="JSON",
        help="arguments of the environment's factory, a JSON object or @FILE",
    )
    parser.add_argument(
        "--network",
        default=DEFAULT_NETWORK,
        metavar="FACTORY",
        help="package.module:factory; parameters named obs_size, observation_size and action_size "
        f"are filled in from the environment, rngs from the seed [{DEFAULT_NETWORK}]",
    )
    parser.add_argument(
        "--network-arguments",
        default="{}",
        metavar="JSON",
        help="arguments of the network's factory, a JSON object or @FILE",
    )
    add_config_options(parser.add_argument_group("PPO"), PPOConfig)
    add_config_options(parser.add_argument_group("evaluation"), EvalConfig, prefix=EVALUATION)
    add_config_options(
        parser.add_argument_group("run"), TrainConfig, leave_out=("ppo", "eval", "video")
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from nnx_ppo.algorithms.checkpointing import latest_checkpoint, read_checkpoint_record
    from nnx_ppo.algorithms.config import TrainConfig

    search_working_directory()
    latest = latest_checkpoint(arguments.out) if arguments.out.is_dir() else None
    if arguments.resume and latest is not None:
        record = read_checkpoint_record(latest)
        if record.environment_factory is None or record.network_factory is None:
            raise CommandError(
                f"{latest} does not record how its network and environment are made, so it cannot "
                "be resumed from here; resume it in Python with load_checkpoint and train_ppo"
            )
        environment_factory, network_factory = record.environment_factory, record.network_factory
        config = _overridden(record.config or TrainConfig(), arguments)
        output.note(f"going on from {latest}")
    else:
        _refuse_used_directory(arguments.out)
        if arguments.environment is None:
            raise CommandError(
                f"there is no complete checkpoint in {arguments.out} to resume from"
                if arguments.resume
                else "--environment is missing; name a built-in one, such as swing_up, or "
                "package.module:factory"
            )
        environment_factory = environment_record(
            arguments.environment,
            read_json_object(arguments.environment_arguments, option="--environment-arguments"),
        )
        environment = environment_factory.build()
        config = _overridden(_defaults(environment), arguments)
        network_factory = network_record(
            arguments.network,
            read_json_object(arguments.network_arguments, option="--network-arguments"),
            environment,
            config.seed,
        )
    trained = train(
        arguments.out,
        config,
        environment_factory,
        network_factory,
        resume_from=latest,
        note=output.note,
    )
    data = {
        "checkpoint": str(trained.checkpoint),
        "steps": trained.steps,
        "return": trained.episode_return,
        "seconds": trained.seconds,
    }
    text = (
        f"return {trained.episode_return:.1f} after {trained.steps:,} steps\n"
        f"checkpoint {trained.checkpoint}"
    )
    output.result(data, text)
    return 0


def _defaults(environment: Any) -> "TrainConfig":
    """Defaults of the library, with evaluation episodes as long as the environment's."""
    from nnx_ppo.algorithms.config import TrainConfig

    config = TrainConfig()
    length = getattr(environment, "episode_length", None)
    if length is not None:
        config.eval.max_episode_length = length
    return config


def _overridden(config: "TrainConfig", arguments: argparse.Namespace) -> "TrainConfig":
    from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig

    return dataclasses.replace(
        config,
        ppo=dataclasses.replace(config.ppo, **config_overrides(arguments, PPOConfig)),
        eval=dataclasses.replace(
            config.eval, **config_overrides(arguments, EvalConfig, prefix=EVALUATION)
        ),
        **config_overrides(arguments, TrainConfig),
    )


def _refuse_used_directory(directory: Path) -> None:
    if directory.is_dir() and any(directory.iterdir()):
        raise CommandError(
            f"{directory} already holds a run; go on with --resume or give another --out"
        )
    if directory.exists() and not directory.is_dir():
        raise CommandError(f"{directory} is a file; --out must be a directory")
