import jax
import pytest

from nnx_ppo.algorithms.factory_record import record_factory
from nnx_ppo.algorithms.types import EnvState, RLEnv
from nnx_ppo.environments import ENVIRONMENTS, make_environment


def test_these_environments_are_built_in() -> None:
    assert list(ENVIRONMENTS) == ["swing_up", "swing_up_delayed", "balance", "two_arm"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments_have_what_training_and_robots_ask_for(name: str) -> None:
    env = make_environment(name)
    assert isinstance(env, RLEnv)
    assert isinstance(jax.eval_shape(env.reset, jax.random.key(0)), EnvState)
    assert env.episode_length / env.control_rate_hz == 10.0
    assert 0.0 < env.solved_return < 100.0
    assert hash(env) == hash(env)


def test_arguments_reach_the_environment() -> None:
    assert make_environment("swing_up_delayed", delay_steps=5).delay_steps == 5


def test_records_rebuild_an_environment() -> None:
    record = record_factory(make_environment, name="swing_up_delayed", delay_steps=2)
    assert record.build().delay_steps == 2


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no built-in environment 'cart_pole'.*two_arm"):
        make_environment("cart_pole")
