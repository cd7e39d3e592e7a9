"""Trains on the devices that this process sees, alone or with others, and writes down the numbers.

Run as ``sharded_training.py OUTPUT DEVICES [PORT PROCESSES INDEX]``; without a mesh if DEVICES is
0.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from training_cases import PointEnv, make_lstm_networks, make_point_networks

from nnx_ppo.algorithms.checkpointing import load_checkpoint, make_checkpoint_fn
from nnx_ppo.algorithms.config import (
    DistillationConfig,
    DistillationTrainConfig,
    EvalConfig,
    PPOConfig,
    TrainConfig,
)
from nnx_ppo.algorithms.distillation import train_distillation
from nnx_ppo.algorithms.ppo import new_training_state, train_ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

EVALUATION = EvalConfig(every_steps=64 * 5, n_envs=4, max_episode_length=10)


def train(networks, env, mesh, output, steps, initial_state=None):
    logged = []
    config = TrainConfig(
        ppo=PPOConfig(
            n_envs=64,
            rollout_length=5,
            n_epochs=2,
            n_minibatches=2,
            learning_rate=1e-2,
            logging_level=LoggingLevel.ALL & ~LoggingLevel.THROUGHPUT,
        ),
        eval=EVALUATION,
        checkpoint_every_steps=64 * 5 * 2,
    )
    result = train_ppo(
        env,
        networks,
        config,
        total_steps=steps,
        seed=3,
        log_fn=lambda metrics, steps: logged.append({k: float(v) for k, v in metrics.items()}),
        checkpoint_fn=make_checkpoint_fn(output, config),
        initial_state=initial_state,
        mesh=mesh,
    )
    return result, logged


def weights_of(network):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(network, nnx.Param))]


def spread_of(state):
    """Number of environments that each device holds, for each leaf."""
    leaves = jax.tree.leaves((state.env_states, state.network_states))
    return sorted({leaf.addressable_shards[0].data.shape[0] for leaf in leaves})


def connect() -> None:
    # These runs are short and would spend their time compiling.
    jax.config.update("jax_disable_most_optimizations", True)
    if len(sys.argv) > 3:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        port, n_processes, index = map(int, sys.argv[3:])
        jax.distributed.initialize(f"127.0.0.1:{port}", n_processes, index)


def main() -> None:
    connect()
    output, n_devices = Path(sys.argv[1]), int(sys.argv[2])
    mesh = jax.make_mesh((n_devices,), ("environments",)) if n_devices else None
    process = jax.process_index()
    numbers: dict[str, np.ndarray] = {}
    for name, make in (("mlp", make_point_networks), ("lstm", make_lstm_networks)):
        env = EpisodeWrapper(PointEnv(), 7)
        checkpoints = output / "checkpoints" / name
        result, logged = train(make(), env, mesh, checkpoints, 64 * 5 * 3)
        assert bool(logged) == (process == 0)
        for i, leaf in enumerate(weights_of(result.training_state.networks)):
            numbers[f"{name}/weights/{i}"] = leaf
        for i, metrics in enumerate(logged):
            numbers |= {f"{name}/log/{i}/{k}": np.array(v) for k, v in metrics.items()}
        for entry in result.eval_history:
            mean = entry["eval/episode_reward/mean"]
            numbers[f"{name}/eval/{entry['step']}"] = np.asarray(mean)
        if mesh is not None:
            numbers[f"spread/{name}"] = np.array(spread_of(result.training_state))

        # What the checkpoint in the middle of the run holds leads to the same end.
        template = new_training_state(env, make(seed=5), 64, 0, 1e-2)
        path = checkpoints / f"step_{64 * 5 * 2:010d}"
        loaded = load_checkpoint(path, template.networks, template.optimizer)["training_state"]
        again, _ = train(make(), env, mesh, output / "again" / name, 64 * 5 * 3, loaded)
        for i, leaf in enumerate(weights_of(again.training_state.networks)):
            numbers[f"{name}/again/{i}"] = leaf

    student = make_point_networks(seed=2)
    train_distillation(
        EpisodeWrapper(PointEnv(), 7),
        make_point_networks(seed=1),
        student,
        DistillationTrainConfig(
            distillation=DistillationConfig(n_envs=16, n_minibatches=2, learning_rate=1e-2),
            eval=EvalConfig(enabled=False),
        ),
        total_steps=16 * 20 * 2,
        mesh=mesh,
    )
    for i, leaf in enumerate(weights_of(student)):
        numbers[f"distillation/{i}"] = leaf
    if mesh is not None:
        config = TrainConfig(ppo=PPOConfig(n_envs=n_devices + 1, n_minibatches=1))
        try:
            train_ppo(PointEnv(), make_point_networks(), config, mesh=mesh)
        except ValueError as error:
            (output / f"error_{process}.txt").write_text(str(error))
    save: Any = np.savez  # whose first keyword has another type
    save(output / f"numbers_{process}.npz", **numbers)


if __name__ == "__main__":
    main()
