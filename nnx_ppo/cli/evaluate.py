"""Evaluate a bundle in whole episodes of an environment with Gymnasium's interface.

The environment is one that is registered with Gymnasium, one of this project's own in JAX by its
name, or what package.module:factory makes. Episode k begins with seed --seed + k, whatever the
number of environments stepped together. Exit status 1 if the mean return is below --min-return.
"""

import argparse
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.errors import CommandError, describe
from nnx_ppo.cli.output import Output, table
from nnx_ppo.cli.references import import_function, read_json_object

if TYPE_CHECKING:
    from serving import EvaluationReport

EXAMPLES = """examples:
  nnx-ppo evaluate policy/ --env Pendulum-v1 --episodes 100 --num-envs 10 --actions rescale
  nnx-ppo evaluate policy/ --env swing_up_delayed --episodes 20 --runtime c --json
  nnx-ppo evaluate policy/ --env my_robot:make_env --min-return 80
"""

# Gymnasium's own names end with a version, and may begin with a module that registers them.
_REGISTERED = re.compile(r".*-v\d+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="directory of the bundle")
    parser.add_argument(
        "--env",
        required=True,
        metavar="NAME",
        help="an ID of Gymnasium's, a built-in environment, or package.module:factory",
    )
    parser.add_argument(
        "--env-arguments",
        default="{}",
        metavar="JSON",
        help="arguments of the environment, a JSON object or @FILE",
    )
    parser.add_argument(
        "--runtime",
        default="onnx",
        help="name of the artefact: onnx, c, litert, saved_model, stablehlo, ... [onnx]",
    )
    parser.add_argument("--episodes", type=int, default=10, help="whole episodes to run [10]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first episode [0]")
    parser.add_argument("--num-envs", type=int, default=1, help="environments stepped together [1]")
    parser.add_argument(
        "--max-steps", type=int, help="steps after which an episode is cut [the environment's]"
    )
    parser.add_argument(
        "--actions",
        choices=("clip", "rescale"),
        default="clip",
        help="limit actions to the environment's bounds, or map -1..1 to them [clip]",
    )
    parser.add_argument(
        "--min-return", type=float, help="mean return below which the exit status is 1 [any]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from serving import evaluate_policy, load_policy

    given = read_json_object(arguments.env_arguments, option="--env-arguments")
    policy = load_policy(arguments.bundle, runtime=arguments.runtime)
    start = time.perf_counter()
    report = evaluate_policy(
        policy,
        environment_named(arguments.env),
        episodes=arguments.episodes,
        seed=arguments.seed,
        num_envs=arguments.num_envs,
        max_steps=arguments.max_steps,
        actions=arguments.actions,
        environment_arguments=given,
    )
    seconds = time.perf_counter() - start
    enough = arguments.min_return is None or report.mean_return >= arguments.min_return
    data = {
        "bundle": str(arguments.bundle),
        **report.to_json(),
        "environment": arguments.env,
        "seconds": seconds,
        "min_return": arguments.min_return,
        "passed": enough,
    }
    output.result(data, _as_text(report, arguments.env, enough=enough))
    return 0 if enough else 1


def environment_named(name: str) -> Any:
    """Find what a name on the command line means.

    Returns:
        An ID of Gymnasium's, or a function that makes an environment.

    Raises:
        CommandError: If there is nothing of that name.
    """
    if _REGISTERED.fullmatch(name):
        return name
    if ":" in name:
        return import_function(name)
    try:
        from nnx_ppo.environments import ENVIRONMENTS, make_environment
    except ModuleNotFoundError as error:
        raise CommandError(f"--env {name}: {describe(error, 'train')}") from error

    if name not in ENVIRONMENTS:
        raise CommandError(
            f"there is no environment {name!r}; Gymnasium's have a version, as in Pendulum-v1, the "
            f"built-in ones are {', '.join(sorted(ENVIRONMENTS))}, and one of your own is named "
            "as package.module:factory"
        )

    def make(**arguments: Any) -> Any:
        from nnx_ppo.wrappers.gymnasium_view import GymnasiumView

        return GymnasiumView(make_environment(name, **arguments))

    return make


def _as_text(report: "EvaluationReport", name: str, *, enough: bool) -> str:
    returns, lengths = report.returns, report.lengths
    ended = sum(episode.terminated for episode in report.episodes)
    spread = ""
    if len(returns) > 1:
        spread = f" +- {report.standard_error:.2f}"
    rows = [
        ("episodes", str(len(returns))),
        ("mean return", f"{report.mean_return:.2f}{spread}" + ("" if enough else "  (too low)")),
        ("lowest, highest", f"{returns.min():.2f}, {returns.max():.2f}"),
        ("mean length", f"{lengths.mean():.1f} steps"),
        ("ended by the task", str(ended)),
        ("actions clipped", f"{100.0 * report.clipped_share:.1f} %"),
        ("runtime", report.runtime),
    ]
    return table((name, ""), rows)
