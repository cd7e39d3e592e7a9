"""Policies exported to C for several tests, and a way to compile programs that use them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jax
import jax.numpy as jp
import numpy as np
from export_networks import sampler
from flax import nnx

from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")


class MixedInputs(StatefulModule):
    """Floats, booleans and integers in one observation, and a count that a reset leaves alone."""

    def __init__(self, rngs):
        self.mix = nnx.Linear(8, 8, rngs=rngs)

    def initialize_state(self, batch_size):
        return {"age": jp.full((batch_size,), 5, jp.int32), "level": jp.full((batch_size, 3), 0.25)}

    def reset_state(self, prev_state):
        return {"age": prev_state["age"], "level": jp.full_like(prev_state["level"], 0.25)}

    def __call__(self, module_state, obs, rollout_extras=None):
        age = module_state["age"] + obs["mode"]
        level = jp.maximum(0.5 * module_state["level"] + obs["position"], -1.0)
        parts = [
            level,
            obs["contact"].astype(jp.float32),
            obs["mode"].astype(jp.float32)[:, None],
            (age % 5).astype(jp.float32)[:, None],
            obs["position"].max(axis=-1, keepdims=True),
        ]
        y = jax.nn.relu(self.mix(jp.concatenate(parts, axis=-1)))
        return StatefulModuleOutput({"age": age, "level": level}, y, jp.array(0.0), {})


def mixed():
    """Return a policy with inputs of every kind, and an observation."""
    rngs = nnx.Rngs(0)
    observation = {
        "contact": np.zeros(2, np.bool_),
        "mode": np.zeros((), np.int32),
        "position": np.zeros(3, np.float32),
    }
    return Sequential([MixedInputs(rngs), Dense(8, 4, rngs), sampler(rngs)]), observation


def compile_and_run(
    bundle_path: Path,
    main: str,
    directory: Path,
    *options: str,
    compiler: str = "cc",
) -> subprocess.CompletedProcess[str]:
    """Compile `main` with a bundle's policy, strictly, run it, and return what it said."""
    sources = bundle_path / "c"
    files = [f"-I{sources}", str(sources / "policy.c")]
    return compile_and_run_alone(main, directory, *options, *files, compiler=compiler)


def compile_and_run_alone(
    main: str, directory: Path, *options: str, compiler: str = "cc"
) -> subprocess.CompletedProcess[str]:
    """Compile `main` with nothing but `options`, strictly, run it, and return what it said."""
    (directory / "main.c").write_text(main)
    program = directory / "program"
    done = subprocess.run(
        [compiler, *STRICT, str(directory / "main.c"), *options, "-o", str(program), "-lm"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return subprocess.run([str(program)], capture_output=True, text=True)
