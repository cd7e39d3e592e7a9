"""Environment steps per second of training, beside a plain PPO and beside Brax's.

    pip install --editable '.[train]' brax
    python benchmarks/training_throughput.py

Trains a multilayer perceptron (64, 64), an LSTM of 64 and a graph of three populations with delays
on the swing-up task with 256 environments, 20 steps per iteration and 4 x 4 updates: once as it
is, and once with a reset that simulates 500 steps until the mechanism settles, as physics engines
do. The contenders are `train_ppo`'s iteration, the plain implementation in `plain_ppo.py`, and for
the perceptron Brax's PPO (`brax_ppo.py`; left out with a word where Brax is not installed). All
live in one process and take turns, in another order each time. Prints the median over the turns,
the 99th percentile of the time of a turn, and ours relative to the others, compared turn by turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from plain_ppo import PlainPPO

from nnx_ppo.algorithms.ppo import compiled_ppo_step, default_config, new_training_state
from nnx_ppo.environments.swing_up import SwingUp
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential, Splitter
from nnx_ppo.networks.factories import make_mlp, make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.utils import Flattener
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

OBSERVATION, ACTION = SwingUp.observation_size, SwingUp.action_size
EPISODE_LENGTH = 200
ROLLOUT_LENGTH = 20
WARM_UP_TURNS = 2
"""Turns that are not counted: the first compiles, and Brax's second does once more."""


class SettlingSwingUp(SwingUp):
    """The swing-up task whose episodes start once the mechanism has moved for a while."""

    def __init__(self, settling_steps: int):
        super().__init__()
        self.settling_steps = settling_steps

    def reset(self, rng: jax.Array) -> Any:
        state = super().reset(rng)
        push = jax.numpy.zeros(ACTION)
        mechanism = jax.lax.fori_loop(
            0, self.settling_steps, lambda _, m: self.advance(m, push), state.mechanism
        )
        return self.start(mechanism)


def mlp(rngs: nnx.Rngs) -> Any:
    return make_mlp_actor_critic(OBSERVATION, ACTION, [64, 64], [64, 64], rngs)


def lstm(rngs: nnx.Rngs) -> Any:
    return _policy([LSTM(OBSERVATION, 64, rngs), Dense(64, 2 * ACTION, rngs)], rngs)


def graph(rngs: nnx.Rngs) -> Any:
    graph = PopulationGraph(rngs)
    graph.add_input("sensors", OBSERVATION, input_from="sensors")
    graph.add_population("hidden", 64, activation=nnx.tanh)
    graph.add_population("motor", 32, activation=nnx.tanh)
    graph.add_output("command", 2 * ACTION)
    graph.connect("sensors", "hidden", delay=1)
    graph.connect("hidden", "hidden", delay=1)
    graph.connect("hidden", "motor", delay=0)
    graph.connect("motor", "command", delay=2)
    graph.finalize()
    return _policy([Splitter(sensors=OBSERVATION), graph, Flattener()], rngs)


def _policy(actor: list[Any], rngs: nnx.Rngs) -> Sequential:
    sampler = NormalTanhSampler(rngs, entropy_weight=1e-2)
    critic = make_mlp([OBSERVATION, 64, 64, 1], rngs, activation_last_layer=False)
    action = Sequential([*actor, sampler])
    return Sequential([Normalizer(OBSERVATION), PPOAdapter(action=action, value=critic)])


NETWORKS: dict[str, Callable[[nnx.Rngs], Any]] = {"mlp": mlp, "lstm": lstm, "graph": graph}


class OurPPO:
    """The iteration that `train_ppo` runs, with its default settings."""

    def __init__(self, environment: Any, network: Any, n_envs: int):
        self.environment, self.n_envs = environment, n_envs
        self.ppo = default_config().ppo
        self.state = new_training_state(environment, network, n_envs, 0, self.ppo.learning_rate)

    def run(self, iterations: int) -> int:
        """Trains and returns how many environment steps that took."""
        ppo = self.ppo
        for _ in range(iterations):
            self.state, _ = compiled_ppo_step(
                self.environment,
                self.state,
                self.n_envs,
                ROLLOUT_LENGTH,
                ppo.gae_lambda,
                ppo.discounting_factor,
                ppo.clip_range,
                ppo.normalize_advantages,
                ppo.combine_advantages,
                ppo.n_epochs,
                ppo.n_minibatches,
                ppo.critic_loss_weight,
                ppo.logging_level,
                None,
                ppo.bootstrap_truncated,
            )
        jax.block_until_ready(jax.tree.leaves(nnx.state(self.state.networks)))
        return iterations * self.n_envs * ROLLOUT_LENGTH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", action="append", choices=NETWORKS, default=[])
    parser.add_argument("--reset", action="append", choices=("cheap", "expensive"), default=[])
    parser.add_argument("--turns", type=int, default=20, help="turns of each contender [20]")
    parser.add_argument("--per-turn", type=int, default=5, help="iterations in a turn [5]")
    parser.add_argument("--n-envs", type=int, default=256, help="environments [256]")
    parser.add_argument(
        "--settling-steps", type=int, default=500, help="simulated by an expensive reset [500]"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    results = {}
    for network in arguments.network or NETWORKS:
        for reset in arguments.reset or ("cheap", "expensive"):
            settling = arguments.settling_steps if reset == "expensive" else 0
            result = _compare(arguments, network, settling)
            results[f"{network}, {reset} reset"] = result
            if not arguments.json:
                _print(f"{network}, {reset} reset", result)
    if arguments.json:
        print(json.dumps(results, indent=2))


def _compare(arguments: argparse.Namespace, network: str, settling: int) -> dict[str, Any]:
    swing_up = SettlingSwingUp(settling) if settling else SwingUp()
    environment = EpisodeWrapper(swing_up, EPISODE_LENGTH)
    build, n_envs = NETWORKS[network], arguments.n_envs
    ours = OurPPO(environment, build(nnx.Rngs(0)), n_envs)
    plain = PlainPPO(environment, build(nnx.Rngs(0)), n_envs, ROLLOUT_LENGTH)
    contenders: dict[str, Callable[[], int]] = {
        "ours": lambda: ours.run(arguments.per_turn),
        "plain": lambda: plain.run(arguments.per_turn),
    }
    brax = _brax(swing_up, arguments) if network == "mlp" else None
    if brax is not None:
        contenders["brax"] = brax.run
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    order = np.random.default_rng(0)
    for turn in range(WARM_UP_TURNS + arguments.turns):
        for name in order.permutation(list(contenders)):
            start = time.perf_counter()
            steps = contenders[name]()
            if turn >= WARM_UP_TURNS:
                rates[name].append(steps / (time.perf_counter() - start))
    if brax is not None:
        brax.close()
    return {
        name: {
            "steps_per_s": float(np.median(values)),
            "p99_ms_per_turn": 1e3
            * float(np.percentile(1.0 / np.array(values), 99))
            * arguments.per_turn
            * n_envs
            * ROLLOUT_LENGTH,
            "ours_relative": float(np.median(np.array(rates["ours"]) / np.array(values))),
        }
        for name, values in rates.items()
    }


def _brax(environment: Any, arguments: argparse.Namespace) -> Any:
    try:
        from brax_ppo import SteppedBrax
    except ImportError as error:
        print(f"without Brax: {error}", file=sys.stderr)
        return None
    return SteppedBrax(
        environment,
        arguments.n_envs,
        ROLLOUT_LENGTH,
        EPISODE_LENGTH,
        arguments.per_turn,
        WARM_UP_TURNS + arguments.turns,
    )


def _print(case: str, result: dict[str, Any]) -> None:
    print(case, flush=True)
    for name, values in result.items():
        print(
            f"  {name:6} {values['steps_per_s']:10,.0f} steps/s   p99 of a turn "
            f"{values['p99_ms_per_turn']:7.1f} ms   ours / {name} {values['ours_relative']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
