"""Brax's PPO on an environment of ours, a few iterations at a time.

Used by `training_throughput.py`. Brax trains in one call, so that call runs in a thread of its own
and waits, between epochs of the wanted length, until its next turn.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
from brax import envs
from brax.training.agents.ppo import networks as ppo_networks
from brax.training.agents.ppo import train as ppo


def _on_each_device(tree: Any, devices: list[Any]) -> Any:
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * len(devices)), tree)


# Brax 0.14.2 calls what JAX 0.10 took away; on a single device this is the same.
if not hasattr(jax, "device_put_replicated"):
    setattr(jax, "device_put_replicated", _on_each_device)  # noqa: B010


class BraxEnvironment(envs.Env):
    """An environment of ours as Brax sees one."""

    def __init__(self, environment: Any):
        self.environment = environment

    def reset(self, rng: jax.Array) -> envs.State:
        state = self.environment.reset(rng)
        return envs.State(state, state.obs, state.reward, state.done, dict(state.metrics))

    def step(self, state: envs.State, action: jax.Array) -> envs.State:
        after = self.environment.step(state.pipeline_state, action)
        return state.replace(
            pipeline_state=after,
            obs=after.obs,
            reward=after.reward,
            done=after.done,
            metrics=dict(after.metrics),
        )

    @property
    def observation_size(self) -> int:
        return self.environment.observation_size

    @property
    def action_size(self) -> int:
        return self.environment.action_size

    @property
    def backend(self) -> str:
        return "none"


class SteppedBrax:
    """Brax's PPO, run a given number of iterations at a time.

    A hidden layer more or less is not the question, so the networks are two layers of 64 like
    those of the multilayer perceptron here, observations are normalized, and the optimizer makes
    as many updates on as many samples. Brax starts each episode from one of the states that it
    drew at the beginning; nothing is reset in between, whatever a reset costs.
    """

    def __init__(
        self,
        environment: Any,
        n_envs: int,
        rollout_length: int,
        episode_length: int,
        iterations: int,
        turns: int,
    ):
        self.steps_per_turn = n_envs * rollout_length * iterations
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(
            target=self._train,
            args=(environment, n_envs, rollout_length, episode_length, turns),
            daemon=True,
        )
        self._thread.start()
        # Until the first epoch is about to begin: environments are made, nothing is compiled yet.
        self._wait()

    def run(self) -> int:
        """Trains for one turn and returns how many environment steps that took."""
        self._go.release()
        self._wait()
        return self.steps_per_turn

    def close(self) -> None:
        """Ends training."""
        self._stopping = True
        self._go.release()
        self._thread.join()

    def _wait(self) -> None:
        self._done.acquire()
        if self._failure is not None:
            raise RuntimeError("Brax's training ended early") from self._failure

    def _train(
        self,
        environment: Any,
        n_envs: int,
        rollout_length: int,
        episode_length: int,
        turns: int,
    ) -> None:
        def factory(*args: Any, **kwargs: Any) -> Any:
            hidden = {
                "policy_hidden_layer_sizes": (64, 64),
                "value_hidden_layer_sizes": (64, 64),
                "activation": jax.nn.relu,
            }
            return ppo_networks.make_ppo_networks(*args, **kwargs, **hidden)

        def between(step: int, *_: Any) -> None:
            self._done.release()
            self._go.acquire()
            if self._stopping:
                raise _StopTrainingError

        try:
            ppo.train(
                environment=BraxEnvironment(environment),
                num_timesteps=self.steps_per_turn * turns,
                episode_length=episode_length,
                num_envs=n_envs,
                unroll_length=rollout_length,
                batch_size=n_envs // 4,
                num_minibatches=4,
                num_updates_per_batch=4,
                num_evals=turns + 1,
                num_resets_per_eval=0,
                normalize_observations=True,
                learning_rate=1e-4,
                entropy_cost=1e-2,
                discounting=0.99,
                network_factory=factory,
                policy_params_fn=between,
                run_evals=False,
                log_training_metrics=False,
            )
        except _StopTrainingError:
            pass
        except BaseException as error:
            self._failure = error
            self._done.release()


class _StopTrainingError(Exception):
    pass
