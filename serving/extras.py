"""Packages that only some users need, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import Any

from serving.errors import RuntimeUnavailableError


def import_extra(module: str, *, extra: str, what: str, package: str | None = None) -> Any:
    """Imports a module that an extra installs, or one of ours that needs such a package.

    Args:
        module: its name.
        extra: the extra of nnx-ppo-deploy that brings it.
        what: what needs it, for the message.
        package: the package of the extra, where the module is one of ours.

    Raises:
        RuntimeUnavailableError: naming the install command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"{what} needs {package or module}, which cannot be imported ({error}); "
            f'install it with: pip install "nnx-ppo-deploy[{extra}]"'
        ) from error
