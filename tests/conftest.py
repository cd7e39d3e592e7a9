"""Every test runs under the strictest settings that the packages promise to be clean under."""

import os

import pytest

# Before JAX or TensorFlow is imported: tests compare numbers on the CPU, and TensorFlow's start-up
# notes would bury a failure.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_dtype_promotion", "strict")

# Annotated shapes and dtypes are checked at run time in everything imported from here on.
install_import_hook(["nnx_ppo", "export", "serving"], "beartype.beartype")


def pytest_configure(config: pytest.Config) -> None:
    # Set here and not in pyproject.toml, so that it binds the project's own tests only.
    config.addinivalue_line("filterwarnings", "error")
