"""Train a policy, export it, and prove that the exported files act as it does.

    python examples/train_and_export.py [STEPS]

Swinging up takes about three million steps, a few minutes on two cores. Writes policy/.
"""

import sys

import jax
from flax import nnx

from export import export_policy, verify_parity
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.environments import make_environment
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

total_steps = int(float(sys.argv[1])) if len(sys.argv) > 1 else 3_000_000

env = make_environment("swing_up")
network = make_mlp_actor_critic(6, 1, [128, 128], [128, 128], nnx.Rngs(0))
result = train_ppo(
    EpisodeWrapper(env, env.episode_length), network, total_steps=total_steps, eval_env=env
)
print(f"return {result.eval_history[-1]['eval/episode_reward/p50']:.1f} of 100")

observation = env.reset(jax.random.key(0)).obs
export_policy(network, observation, "policy/", control_rate_hz=env.control_rate_hz)
print(verify_parity("policy/", network).summary)
