import json
import math

import numpy as np
import pytest
from flax import nnx

from nnx_ppo.algorithms.checkpoint_format.json_values import (
    NotRecordable,
    from_json_value,
    to_json_value,
)
from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.algorithms.types import LoggingLevel


def _round_trip(value):
    return from_json_value(json.loads(json.dumps(to_json_value(value, "value"), allow_nan=False)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1,
        math.inf,
        "text",
        [1, (2, "three")],
        {"a": {"b": ()}},
        {1: "int key", (2, 3): "tuple key"},
        {"tuple": [1], "mapping": 2, "callable": "not one"},
        LoggingLevel.LOSSES | LoggingLevel.WEIGHTS,
        nnx.relu,
        TrainConfig,
    ],
)
def test_values_come_back_as_they_were(value):
    restored = _round_trip(value)
    assert restored == value
    assert type(restored) is type(value)


def test_settings_come_back_as_they_were():
    config = TrainConfig(seed=3)
    config.ppo.logging_level = LoggingLevel.ALL
    config.ppo.logging_percentiles = (5, 95)
    restored = _round_trip(config)
    assert restored == config
    assert restored.ppo.logging_percentiles == (5, 95)
    assert isinstance(restored.eval.logging_percentiles, tuple)


def test_not_a_number_and_numbers_of_numpy_are_recorded():
    assert math.isnan(_round_trip(math.nan))
    assert _round_trip(np.float32(0.5)) == 0.5
    assert _round_trip(np.array(3)) == 3


def test_what_cannot_be_recorded_is_named_by_its_place():
    with pytest.raises(NotRecordable, match=r"config\['a'\]\[1\] is a object"):
        to_json_value({"a": [0, object()]}, "config")
    with pytest.raises(NotRecordable, match=r"config\['f'\] needs .*lambda"):
        to_json_value({"f": lambda: 0}, "config")


@pytest.mark.parametrize(
    "record",
    [
        {"dataclass": "nnx_ppo.algorithms.types:LoggingLevel", "fields": {}},
        {"dataclass": "nnx_ppo.algorithms.config:EvalConfig", "fields": {"no_such_field": 1}},
        {"enum": "nnx_ppo.algorithms.config:EvalConfig", "value": 1},
        {"enum": "nnx_ppo.algorithms.types:LoggingLevel", "value": 1 << 40},
    ],
)
def test_records_that_no_longer_fit_their_class_raise(record):
    with pytest.raises(ValueError):
        from_json_value(record)
