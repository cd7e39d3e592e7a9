import argparse
import dataclasses
import enum
from collections.abc import Sequence

import pytest

from nnx_ppo.algorithms.config import EvalConfig, PPOConfig
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.cli.config_options import add_config_options, config_overrides, field_docstrings


class Colour(enum.Flag):
    RED = enum.auto()
    BLUE = enum.auto()


@dataclasses.dataclass
class Settings:
    n_steps: int = 10
    """How many steps,
    in all."""
    rate: float | int = 0.5
    """Share of ``n_steps``, 100% at most."""
    limit: float | None = None
    decay: float | bool | None = None
    shuffle: bool = True
    colour: Colour = Colour.RED
    levels: Sequence[float | int] | None = (0, 50)
    name: str = "plain"


def parse(*arguments: str, prefix: str = "") -> dict:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_config_options(parser, Settings, prefix=prefix)
    return config_overrides(parser.parse_args(arguments), Settings, prefix=prefix)


def test_nothing_given_overrides_nothing() -> None:
    assert parse() == {}


def test_each_field_is_read_by_its_type() -> None:
    assert parse("--n-steps", "2_000", "--rate", "0.25", "--name", "x") == {
        "n_steps": 2000,
        "rate": 0.25,
        "name": "x",
    }
    assert parse("--n-steps", "2e6") == {"n_steps": 2_000_000}
    assert parse("--no-shuffle") == {"shuffle": False}


def test_optional_fields_take_none() -> None:
    assert parse("--limit", "none", "--levels", "none") == {"limit": None, "levels": None}
    assert parse("--limit", "1.5") == {"limit": 1.5}


def test_a_field_of_number_or_bool_takes_both() -> None:
    assert parse("--decay", "true")["decay"] is True
    assert parse("--decay", "1")["decay"] == 1.0
    assert parse("--decay", "1")["decay"] is not True
    assert parse("--decay", "none")["decay"] is None


def test_sequences_and_flags_are_lists_of_names_and_numbers() -> None:
    assert parse("--levels", "5,95.5") == {"levels": (5, 95.5)}
    assert parse("--colour", "red,BLUE") == {"colour": Colour.RED | Colour.BLUE}


def test_a_prefix_keeps_two_dataclasses_apart() -> None:
    assert parse("--eval-n-steps", "3", prefix="eval") == {"n_steps": 3}


@pytest.mark.parametrize(
    "arguments",
    [("--n-steps", "2.5"), ("--rate", "fast"), ("--colour", "green"), ("--limit", "much")],
)
def test_what_does_not_fit_the_type_is_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        parse(*arguments)
    assert arguments[1] in str(caught.value)


def test_help_is_the_docstring_under_the_field() -> None:
    assert field_docstrings(Settings)["n_steps"] == "How many steps, in all."
    parser = argparse.ArgumentParser()
    add_config_options(parser, Settings)
    assert "Share of n_steps, 100% at most. [0.5]" in " ".join(parser.format_help().split())


def test_every_field_of_the_training_configuration_has_an_option_with_help() -> None:
    for config_class, prefix in ((PPOConfig, ""), (EvalConfig, "eval")):
        parser = argparse.ArgumentParser()
        add_config_options(parser, config_class, prefix=prefix)
        actions = {action.dest: action for action in parser._actions}
        for field in dataclasses.fields(config_class):
            action = actions[f"{prefix}_{field.name}" if prefix else field.name]
            assert len(action.help or "") > 20, field.name


def test_logging_levels_combine() -> None:
    parser = argparse.ArgumentParser()
    add_config_options(parser, PPOConfig)
    arguments = parser.parse_args(["--logging-level", "LOSSES,GRAD_NORM"])
    assert config_overrides(arguments, PPOConfig) == {
        "logging_level": LoggingLevel.LOSSES | LoggingLevel.GRAD_NORM
    }
