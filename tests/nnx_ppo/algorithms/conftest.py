"""Makes ``training_cases`` importable in these tests, and compiling quicker."""

import pathlib
import sys

import jax
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture
def quick_compile():
    """Compiles without optimizing: these tests run little and would spend their time compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
