"""Functions named on the command line as `package.module:function`, and their arguments as JSON."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnx_ppo.cli.errors import CommandError


def import_function(reference: str) -> Callable[..., Any]:
    """Import what a reference names.

    The working directory is searched too: a project's own factory need not be installed.

    Args:
        reference: `package.module:function`.

    Raises:
        CommandError: If it does not have that form, the module cannot be found, or the function
            is not in it.
    """
    module_name, colon, function_name = reference.partition(":")
    if not colon or not module_name or not function_name:
        raise CommandError(
            f"{reference!r} names no function; write package.module:function, "
            "for example nnx_ppo.networks.factories:make_mlp_actor_critic"
        )
    search_working_directory()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module exists; something that it imports does not
        raise CommandError(
            f"there is no module {module_name!r} (from {reference!r}); install its package or run "
            "from the directory that holds it"
        ) from error
    function = module
    for part in function_name.split("."):
        function = getattr(function, part, None)
        if function is None:
            raise CommandError(
                f"module {module_name!r} has no {function_name!r} (from {reference!r})"
            )
    if not callable(function):
        raise CommandError(f"{reference!r} is a {type(function).__name__}, not a function")
    return function


def search_working_directory() -> None:
    """Let modules be found in the working directory, after everything that is installed."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def read_json_object(text: str, *, option: str) -> dict[str, Any]:
    """Read an option that is a JSON object, or `@FILE` with one in it.

    Raises:
        CommandError: If it is no JSON object, or the file cannot be read.
    """
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{option}: cannot read {text[1:]!r}: {error.strerror}") from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(
            f"{option} is not JSON: {error.msg} at character {error.pos} of {text!r}; "
            """expected an object such as '{"hidden_sizes": [64, 64]}'"""
        ) from error
    if not isinstance(value, dict):
        raise CommandError(
            f"{option} is a JSON {type(value).__name__}; expected an object such as "
            """'{"hidden_sizes": [64, 64]}'"""
        )
    return value
