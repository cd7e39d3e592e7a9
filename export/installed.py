"""Says, before anything else is imported, which command installs what this package needs."""

from __future__ import annotations

import importlib.util

NEEDED = ("jax", "flax", "jaxtyping")


def check_installed() -> None:
    """Check that the packages which every part of an export needs are installed.

    Raises:
        ImportError: naming the package that is missing and the command that installs it.
    """
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"export needs the package {package}, which is not installed; run "
                '`pip install "nnx-ppo-deploy[export]"`'
            )
