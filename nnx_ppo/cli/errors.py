"""How an error of any kind becomes one line for a person and an exit status for a script."""

INSTALL = 'pip install "nnx-ppo-deploy[{extra}]"'

# Which extra brings a module that may be missing, named as a person would install it.
EXTRA_OF_MODULE = {
    "flax": "train",
    "jax": "train",
    "jaxlib": "train",
    "jaxtyping": "train",
    "optax": "train",
    "jinja2": "export",
    "onnx": "export",
    "tf2onnx": "export",
    "tensorflow": "saved-model",
    "onnxruntime": "serving",
    "tritonclient": "triton",
    "gymnasium": "gymnasium",
    "mujoco": "mujoco",
}


class CommandError(Exception):
    """Wrong use of a command: the message says what was given, what was expected and what to do."""


def describe(error: BaseException, extra: str | None = None) -> str:
    """Put an error into one line.

    Args:
        error: What was raised.
        extra: The extra that the command as a whole asks for, named when a module of it is missing.

    Returns:
        One line: the error's own message, with the name of its type before it where the message
        alone would not be understood.
    """
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        module = error.name.partition(".")[0]
        if module in EXTRA_OF_MODULE:
            command = INSTALL.format(extra=extra or EXTRA_OF_MODULE[module])
            return f"this needs {module}, which is not installed; install it with: {command}"
    # A KeyError's text is only the key, quoted.
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    line = " ".join(text.split())
    if not line:
        return type(error).__name__
    if explains_itself(error):
        return line
    return f"{type(error).__name__}: {line}"


def explains_itself(error: BaseException) -> bool:
    """Whether the message alone tells a person what happened.

    True for this project's own errors and the operating system's; any other keeps its type's name.
    """
    package = type(error).__module__.partition(".")[0]
    foreseen = isinstance(error, (OSError, ModuleNotFoundError))
    return package in ("nnx_ppo", "export", "serving") or foreseen
