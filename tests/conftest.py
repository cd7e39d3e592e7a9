"""Every test runs under the strictest settings that the packages promise to be clean under."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# Before JAX or TensorFlow is imported: tests compare numbers on the CPU, and TensorFlow's start-up
# notes would bury a failure.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import coverage_plugin
import jax
from jaxtyping import config as jaxtyping_config
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_dtype_promotion", "strict")

# More than half of the suite's time is XLA compiling, often what another test or an earlier run has
# compiled. Processes that tests start have no part in this: some are killed while they write.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache/jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Annotated shapes and dtypes are checked at run time in everything imported from here on.
install_import_hook(["nnx_ppo", "export", "serving"], "beartype.beartype")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        coverage_plugin.OPTION,
        action="store_true",
        help="write docs/coverage.md from what the tests compare, instead of checking it",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(coverage_plugin.CoverageTable(config), "coverage_table")
    # Set here and not in pyproject.toml, so that it binds the project's own tests only.
    config.addinivalue_line("filterwarnings", "error")
    # About flax's own annotation: nnx.State is generic over typing.Hashable.
    deprecated_hint = "beartype.roar.BeartypeDecorHintPep585DeprecationWarning"
    config.addinivalue_line("filterwarnings", f"ignore::{deprecated_hint}")
    # An entry that another worker is just writing, or was stopped in, is compiled once more; and a
    # tree that cannot be written does without.
    damaged = "ignore:Error (reading|writing) persistent compilation cache entry:UserWarning"
    config.addinivalue_line("filterwarnings", damaged)


@pytest.fixture
def types_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arguments of a wrong type through to the code itself, as they get there for a user."""
    monkeypatch.setattr(jaxtyping_config, "jaxtyping_disable", True)


MakeOnce = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Make a directory in one of pytest's workers; the others wait for it and share it.

    Called with a name and a function that, given a path that does not exist yet, creates the
    directory there.
    """

    def make_once(name: str, make: Callable[[Path], None]) -> Path:
        base = tmp_path_factory.getbasetemp()
        # Each worker has a directory of its own below the one that they share.
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        lock, target = shared / f"{name}.lock", shared / name
        try:
            lock.mkdir()
        except FileExistsError:
            return _wait_for(target, lock / "failed")
        try:
            make(shared / f"{name}.partial")
            (shared / f"{name}.partial").rename(target)
        except BaseException:
            (lock / "failed").touch()
            raise
        return target

    return make_once


@pytest.fixture(scope="session")
def graph_bundle(make_once: MakeOnce) -> Path:
    """A bundle of a graph with delays of one to three steps, in every format. Not to be changed."""

    def make(directory: Path) -> None:
        import numpy as np
        from flax import nnx

        from export import export_policy
        from nnx_ppo.environments.policies import make_delayed_graph_policy

        export_policy(
            make_delayed_graph_policy(4, 1, nnx.Rngs(0), hidden_size=16, sensor_features=8),
            np.zeros(4, np.float32),
            directory,
            control_rate_hz=100.0,
            metadata={"joint_names": ["pole"], "robot": "bench"},
        )

    return make_once("graph_bundle", make)


def _wait_for(target: Path, failed: Path, *, timeout_s: float = 600.0) -> Path:
    deadline_s = time.monotonic() + timeout_s
    while not target.exists():
        if failed.exists() or time.monotonic() > deadline_s:
            raise RuntimeError(f"the other worker did not make {target}; see its error")
        time.sleep(0.1)
    return target
