"""A policy trained in JAX acts on the same mechanism in MuJoCo."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import imageio.v3
import jax
import jax.numpy as jp
import mujoco
import numpy as np
import pytest
from flax import nnx

from export import export_policy
from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.environments import Balance, SwingUp, SwingUpDelayed
from nnx_ppo.environments.policies import make_delayed_graph_policy
from nnx_ppo.environments.rotary_pendulum import GRAVITY_M_S2, RotaryPendulum
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper
from nnx_ppo.wrappers.gymnasium_view import GymnasiumView
from serving import MujocoPlant, Policy, evaluate_policy, load_policy

EPISODES, STEPS = 6, 400
DELAY_STEPS = 1


def load_example(name: str) -> ModuleType:
    file = Path(__file__).resolve().parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


example = load_example("mujoco_pendulum")
ENVIRONMENT = Balance(DELAY_STEPS)
TASK = {"ends_when_fallen": True, "delay_steps": DELAY_STEPS}


def train(environment: Any, steps: int, *, hidden_size: int = 32, **ppo: Any) -> Any:
    """A network with memory, trained; in the mode in which it acts without noise."""
    config = TrainConfig(seed=17, checkpoint_every_steps=0)
    settings = {"learning_rate": 1e-3, "gradient_clipping": 1.0, "n_envs": 128, **ppo}
    config.ppo = dataclasses.replace(config.ppo, total_steps=steps, **settings)
    config.eval = dataclasses.replace(config.eval, enabled=False)
    network = make_delayed_graph_policy(
        environment.observation_size,
        1,
        nnx.Rngs(0),
        hidden_size=hidden_size,
        sensor_features=hidden_size // 2,
    )
    wrapped = EpisodeWrapper(environment, environment.episode_length)
    trained = train_ppo(wrapped, network, config).training_state.networks
    trained.eval()
    return trained


def returns_in_jax(
    network: Any, environment: Any, *, episodes: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns of the network itself, and the states in which the episodes began."""
    keys = jax.vmap(jax.random.key)(jp.arange(episodes))
    graphdef, variables = nnx.split(network)

    @jax.jit
    def run(keys: jax.Array) -> Any:
        start = jax.vmap(environment.reset)(keys)
        network = nnx.merge(graphdef, variables, copy=True)

        def step(carry: Any, _: Any) -> Any:
            carries, states, alive = carry
            network = nnx.merge(graphdef, variables, copy=True)
            out = network(carries, states.obs, None)
            states = jax.vmap(environment.step)(states, out.output.actions)
            after = alive * (1.0 - states.done)
            return (out.next_state, states, after), states.reward * alive

        first = (network.initialize_state(len(keys)), start, jp.ones(len(keys)))
        _, rewards = jax.lax.scan(step, first, None, length=steps)
        return rewards.sum(axis=0), start.mechanism

    return jax.device_get(run(keys))


def returns_in_mujoco(
    policy: Policy, starts: np.ndarray, *, remembers: bool = True, steps: int = STEPS, **task: Any
) -> np.ndarray:
    session = policy.session()
    if not remembers:
        whole = session.step
        session.step = lambda *given, **more: (session.reset(), whole(*given, **more))[1]
    pendulum = example.Pendulum(**task)
    returns = []
    for start in np.asarray(starts, np.float64):
        report = example.run_episode(pendulum, session, start, steps=steps)
        assert report.misses == 0
        returns.append(pendulum.episode_return)
    return np.array(returns)


@pytest.fixture(scope="module")
def trained() -> Any:
    return train(ENVIRONMENT, 82_000)


@pytest.fixture(scope="module")
def bundle(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("balance") / "policy"
    export_policy(
        trained,
        np.zeros(4, np.float32),
        path,
        control_rate_hz=100.0,
        formats=["onnx", "c"],
    )
    return path


@pytest.fixture(scope="module")
def in_jax(trained: Any) -> tuple[np.ndarray, np.ndarray]:
    return returns_in_jax(trained, ENVIRONMENT, episodes=EPISODES, steps=STEPS)


def test_the_model_is_the_mechanism_of_the_environment() -> None:
    model, pendulum = mujoco.MjModel.from_xml_path(str(example.MODEL)), RotaryPendulum()
    assert model.opt.gravity.tolist() == [0.0, 0.0, -GRAVITY_M_S2]
    assert model.body_mass[1:].tolist() == [pendulum.arm_mass_kg, pendulum.pendulum_mass_kg]
    assert model.dof_damping.tolist() == [
        pendulum.arm_friction_nms,
        pendulum.pendulum_friction_nms,
    ]
    assert model.actuator_gear[0, 0] == pendulum.max_torque_nm
    assert model.body_pos[2, 0] == pendulum.arm_length_m
    period_s = 1.0 / SwingUp.control_rate_hz
    assert SwingUp.substeps * model.opt.timestep == pytest.approx(period_s)
    assert SwingUp.control_rate_hz == example.RATE_HZ
    assert SwingUp.episode_length == example.EPISODE_STEPS
    # Inertias about the joints, the pendulum hanging, where the coupling has its other sign.
    data = mujoco.MjData(model)
    data.qpos[1] = np.pi
    mujoco.mj_forward(model, data)
    mass = np.zeros((2, 2))
    mujoco.mj_fullM(model, data, mass)
    coupling = -pendulum.coupling_inertia
    expected = [[pendulum.arm_inertia, coupling], [coupling, pendulum.pendulum_inertia]]
    np.testing.assert_allclose(mass, expected, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "largest_error"), [("float64", 1e-6), ("float32", 1e-3)])
def test_the_same_torques_give_the_same_motion(dtype: str, largest_error: float) -> None:
    rng = np.random.default_rng(3)
    start = rng.uniform(-1.0, 1.0, 4) * [0.5, np.pi, 0.5, 0.5]
    times = np.arange(300)[:, None] / example.RATE_HZ
    # In the rhythm of the pendulum, so that it turns over; beyond the limits of the motor.
    actions = 1.3 * np.sin(2.0 * np.pi * 1.4 * times) + 0.3 * rng.normal(size=(300, 1))

    def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        after = SwingUp().advance(state, action)
        return after, after

    with jax.enable_x64(dtype == "float64"):
        run = jax.jit(lambda start, actions: jax.lax.scan(step, start, actions)[1])
        expected = np.asarray(run(jp.asarray(start, dtype), jp.asarray(actions, dtype)))
    assert expected.dtype == dtype
    plant = MujocoPlant(example.MODEL, observe=lambda data: data.sensordata.copy())
    plant.reset(start[:2], start[2:])
    moved = []
    for action in actions:
        plant.apply(action)
        plant.sleep(1.0 / example.RATE_HZ)
        moved.append(plant.read())
    error = np.array(moved) - expected
    error[:, :2] = np.remainder(error[:, :2] + np.pi, 2.0 * np.pi) - np.pi
    assert np.abs(error).max() < largest_error
    assert np.ptp(np.array(moved)[:, 1]) > 2.0 * np.pi


def test_observations_rewards_and_ends_are_those_of_the_environment() -> None:
    state = ENVIRONMENT.start(jp.array([0.2, 0.1, -0.3, 0.2], jp.float32))
    pendulum = example.Pendulum(**TASK)
    pendulum.begin(np.asarray(state.mechanism, np.float64))
    total, steps = 0.0, 0
    step = jax.jit(ENVIRONMENT.step)
    np.testing.assert_array_equal(pendulum.plant.read(), np.asarray(state.obs))
    while not float(state.done):
        action = np.array([np.sin(0.2 * steps)], np.float32)
        state = step(state, action)
        total, steps = total + float(state.reward), steps + 1
        assert not pendulum.fallen
        pendulum.plant.apply(action)
        pendulum.plant.sleep(0.01)
        np.testing.assert_allclose(pendulum.plant.read(), np.asarray(state.obs), atol=1e-4)
        assert pendulum.episode_return == pytest.approx(total, rel=1e-4)
    assert pendulum.fallen and 10 < steps < 200


def test_the_policy_has_learned_to_balance(in_jax: tuple[np.ndarray, np.ndarray]) -> None:
    returns, starts = in_jax
    pendulum = example.Pendulum(**TASK)
    idle = []
    for start in starts:
        pendulum.begin(start)
        while not pendulum.fallen:
            pendulum.plant.read()
            pendulum.plant.sleep(0.01)
        idle.append(pendulum.episode_return)
    assert returns.mean() > 32.0  # of 40
    assert np.mean(idle) < 5.0


@pytest.mark.parametrize("runtime", ["c", "onnx"])
def test_returns_in_mujoco_are_those_in_jax(
    bundle: Path, in_jax: tuple[np.ndarray, np.ndarray], runtime: str
) -> None:
    expected, starts = in_jax
    returns = returns_in_mujoco(load_policy(bundle, runtime=runtime), starts, **TASK)
    assert returns.mean() == pytest.approx(expected.mean(), rel=0.05)
    np.testing.assert_allclose(returns, expected, rtol=0.05)  # also one by one


def test_without_its_memory_the_pendulum_falls(
    bundle: Path, in_jax: tuple[np.ndarray, np.ndarray]
) -> None:
    returns = returns_in_mujoco(
        load_policy(bundle, runtime="c"), in_jax[1], remembers=False, **TASK
    )
    assert returns.mean() < 0.3 * in_jax[0].mean()


def test_gymnasiums_view_of_the_environment_gives_the_same_returns(
    bundle: Path, in_jax: tuple[np.ndarray, np.ndarray]
) -> None:
    view = GymnasiumView(ENVIRONMENT, episode_length=STEPS)
    report = evaluate_policy(load_policy(bundle), view, episodes=2, seed=0)
    np.testing.assert_allclose(report.returns, in_jax[0][:2], rtol=0.02)


def test_it_balances_in_real_time_too(bundle: Path) -> None:
    session = load_policy(bundle, runtime="c").session()
    start = np.array([0.1, 0.1, 0.0, 0.0])
    pendulum, report = example.run_in_real_time(session, start, duration_s=2.0, **TASK)
    assert report.steps + report.misses >= 195
    assert pendulum.plant.data.time == pytest.approx(2.0, abs=0.2)
    # A machine that is busy with other things misses some deadlines, and the pole stands it.
    assert np.cos(pendulum.plant.data.qpos[1]) > 0.9


def test_a_picture_holds_the_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    example.write_png(tmp_path / "picture.png", pixels)
    np.testing.assert_array_equal(imageio.v3.imread(tmp_path / "picture.png"), pixels)


@pytest.mark.slow
def test_a_policy_that_swings_up_returns_as_much_in_mujoco_as_in_jax(tmp_path: Path) -> None:
    environment = SwingUpDelayed()
    network = train(environment, 3_000_000, hidden_size=64, learning_rate=3e-4, n_envs=256)
    export_policy(
        network,
        np.zeros(4, np.float32),
        tmp_path / "policy",
        control_rate_hz=100.0,
        formats=["onnx", "c"],
    )
    expected, starts = returns_in_jax(network, environment, episodes=32, steps=1000)
    assert expected.mean() > 60.0
    for runtime in ("c", "onnx"):
        policy = load_policy(tmp_path / "policy", runtime=runtime)
        returns = returns_in_mujoco(policy, starts, steps=1000)
        print(f"{runtime}: {returns.mean():.2f} in MuJoCo, {expected.mean():.2f} in JAX")
        assert returns.mean() == pytest.approx(expected.mean(), rel=0.05)
    forgetful = returns_in_mujoco(policy, starts[:8], remembers=False, steps=1000)
    assert forgetful.mean() < 0.3 * expected.mean()
