"""Train and export a policy with a head per arm, on dicts of observations, actions and rewards.

    python examples/two_arm.py [STEPS]

Writes two_arm_policy/.
"""

import sys

import jax
import numpy as np
from flax import nnx

from export import export_policy, verify_parity
from nnx_ppo.algorithms.config import PPOConfig, TrainConfig
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.environments import make_environment
from nnx_ppo.environments.policies import make_two_arm_policy
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper
from serving import load_policy


def main(total_steps: int) -> None:
    env = make_environment("two_arm")
    network = make_two_arm_policy(env.observation_size, env.action_size, nnx.Rngs(0))
    config = TrainConfig(ppo=PPOConfig(learning_rate=5e-4, total_steps=total_steps))
    config.eval.max_episode_length = env.episode_length
    config.eval.every_steps = max(1, total_steps // 10)
    result = train_ppo(
        EpisodeWrapper(env, env.episode_length), network, config, log_fn=report, eval_env=env
    )
    report(result.eval_history[-1], result.total_steps)

    observation = env.reset(jax.random.key(0)).obs
    export_policy(network, observation, "two_arm_policy/", control_rate_hz=env.control_rate_hz)
    print(verify_parity("two_arm_policy/", network).summary)

    # What a robot does: the same tree of observations in, a dict of actions out.
    session = load_policy("two_arm_policy/").session()
    action = session.step(jax.tree.map(np.asarray, observation))
    print({arm: torques.round(2) for arm, torques in action.items()})


def report(metrics: dict, steps: int) -> None:
    if "eval/episode_reward/p50" in metrics:
        print(f"{steps:>10,} steps: return {float(metrics['eval/episode_reward/p50']):5.1f} of 100")


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000)
