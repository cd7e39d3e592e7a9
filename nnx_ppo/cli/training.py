"""Training as `train` and `demo` do it: two factory records in, checkpoints and a return out."""

import dataclasses
import inspect
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnx_ppo.cli.errors import CommandError
from nnx_ppo.cli.output import to_jsonable
from nnx_ppo.cli.references import import_function

if TYPE_CHECKING:
    from nnx_ppo.algorithms.config import TrainConfig
    from nnx_ppo.algorithms.factory_record import FactoryRecord

DEFAULT_NETWORK = "nnx_ppo.networks.factories:make_mlp_actor_critic"
DEFAULT_HIDDEN_SIZES = [128, 128]
METRICS_FILE = "metrics.jsonl"
RETURN = "eval/episode_reward/mean"
# Arguments of a network factory that the environment knows.
SIZES = {
    "obs_size": "observation_size",
    "observation_size": "observation_size",
    "action_size": "action_size",
}


@dataclasses.dataclass(frozen=True)
class Trained:
    """What training left behind."""

    networks: Any
    """The trained network."""
    checkpoint: Path
    """Directory of the last checkpoint."""
    steps: int
    """Environment steps taken in all, earlier runs included."""
    episode_return: float
    """Mean return of evaluation episodes with the final weights, actions without noise."""
    seconds: float
    """Wall time of training, compilation included."""


def environment_record(name: str, arguments: dict[str, Any]) -> "FactoryRecord":
    """Record how to make an environment: a built-in one by name, or `package.module:factory`."""
    from nnx_ppo.algorithms.factory_record import record_factory

    if ":" in name:
        return record_factory(import_function(name), **arguments)
    from nnx_ppo.environments import ENVIRONMENTS, make_environment

    if name not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise CommandError(
            f"there is no built-in environment {name!r}; there are {known}; "
            "name one of your own as package.module:factory"
        )
    return record_factory(make_environment, name=name, **arguments)


def network_record(
    reference: str, arguments: dict[str, Any], environment: Any, seed: int
) -> "FactoryRecord":
    """Record how to make a network, with the sizes that the environment knows filled in."""
    from nnx_ppo.algorithms.factory_record import record_factory

    factory = import_function(reference)
    parameters = inspect.signature(factory).parameters
    for parameter, attribute in SIZES.items():
        if (
            parameter in parameters
            and parameter not in arguments
            and hasattr(environment, attribute)
        ):
            arguments = {**arguments, parameter: getattr(environment, attribute)}
    if reference == DEFAULT_NETWORK:
        hidden = {
            "actor_hidden_sizes": DEFAULT_HIDDEN_SIZES,
            "critic_hidden_sizes": DEFAULT_HIDDEN_SIZES,
        }
        arguments = {**hidden, **arguments}
    return record_factory(factory, seed, **arguments)


def train(
    directory: Path,
    config: "TrainConfig",
    environment_factory: "FactoryRecord",
    network_factory: "FactoryRecord",
    *,
    resume_from: Path | None = None,
    label: str = "training",
    note: Callable[[str], None],
) -> Trained:
    """Train, writing checkpoints and a line of metrics for each iteration.

    Args:
        directory: Where `step_*/` and `metrics.jsonl` go.
        config: Everything about PPO and its evaluation.
        environment_factory: Makes the environment; episodes end at its `episode_length`, if any.
        network_factory: Makes the network.
        resume_from: A checkpoint to go on from.
        label: What the progress line says is trained.
        note: Told what a person should know.

    Returns:
        The network and its return, measured after the last step.
    """
    import jax

    from nnx_ppo.algorithms.checkpointing import load_checkpoint, make_checkpoint_fn
    from nnx_ppo.algorithms.ppo import new_training_state, train_ppo
    from nnx_ppo.algorithms.progress import make_progress_log_fn
    from nnx_ppo.algorithms.rollout import eval_rollout

    environment = environment_factory.build()
    training_environment = with_time_limit(environment)
    networks = network_factory.build()
    state = None
    if resume_from is not None:
        ppo = config.ppo
        template = new_training_state(
            training_environment,
            networks,
            ppo.n_envs,
            config.seed,
            ppo.learning_rate,
            ppo.gradient_clipping,
            ppo.weight_decay,
        )
        loaded = load_checkpoint(
            resume_from, template.networks, template.optimizer, env=training_environment
        )
        state = loaded["training_state"]
        networks = state.networks
    first_step = 0 if state is None else int(state.steps_taken)
    if first_step >= config.ppo.total_steps:
        raise CommandError(
            f"{resume_from} has already taken {first_step:,} of {config.ppo.total_steps:,} steps; "
            "give a larger --total-steps to go on"
        )
    checkpoint = make_checkpoint_fn(
        directory,
        config,
        network_factory=network_factory,
        environment_factory=environment_factory,
    )
    log = MetricsLog(directory / METRICS_FILE, first_step=first_step)
    start = time.monotonic()
    with make_progress_log_fn(config.ppo.total_steps, log_fn=log, description=label) as progress:
        result = train_ppo(
            training_environment,
            networks,
            config,
            log_fn=progress,
            checkpoint_fn=checkpoint,
            eval_env=environment,
            initial_state=state,
        )
    log.flush()
    seconds = time.monotonic() - start
    networks = result.training_state.networks
    steps = int(result.total_steps)
    note(f"{label}: {steps:,} steps in {seconds:.0f} s")
    checkpoint(result.training_state, steps)
    networks.eval()
    evaluation = eval_rollout(
        environment,
        networks,
        n_envs=config.eval.n_envs,
        max_episode_length=config.eval.max_episode_length,
        key=jax.random.key(config.seed),
    )
    networks.train()
    return Trained(
        networks=networks,
        checkpoint=directory / f"step_{steps:010d}",
        steps=steps,
        episode_return=float(evaluation[RETURN]),
        seconds=seconds,
    )


def with_time_limit(environment: Any) -> Any:
    """Wrap an environment that names its `episode_length`, so that training episodes end there."""
    from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

    length = getattr(environment, "episode_length", None)
    return environment if length is None else EpisodeWrapper(environment, length)


class MetricsLog:
    """Writes a line of metrics for each iteration.

    It stays one iteration behind: metrics are still being computed when they are handed over, and
    waiting for them would leave the device idle while the next iteration is prepared.

    Args:
        file: JSON lines; created when there is something to write.
        first_step: Where a resumed run goes on. Lines of later steps, which an interrupted run
            wrote after its last checkpoint, are dropped: those steps are taken again.
    """

    def __init__(self, file: Path, *, first_step: int = 0) -> None:
        self.file = file
        if file.exists():
            _drop_after(file, first_step)
        self._waiting: tuple[Mapping[str, Any], int] | None = None

    def __call__(self, metrics: Mapping[str, Any], steps: int) -> None:
        """Take the metrics of one iteration and write those of the one before."""
        self.flush()
        self._waiting = metrics, int(steps)

    def flush(self) -> None:
        """Write what is waiting."""
        if self._waiting is None:
            return
        metrics, steps = self._waiting
        self._waiting = None
        line = json.dumps({"step": steps, **to_jsonable(metrics)})
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # Opened for each line: a run that is killed keeps every line before.
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")


def _drop_after(file: Path, step: int) -> None:
    kept = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (json.JSONDecodeError, KeyError, TypeError):
            continue  # a line that was being written when the run was killed
    beside = file.with_suffix(".partial")
    beside.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    beside.replace(file)
