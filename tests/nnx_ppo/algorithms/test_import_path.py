import functools

import jax
import optax
import pytest
from flax import nnx

from nnx_ppo.algorithms.checkpoint_format.import_path import import_path_of, resolve_import_path
from nnx_ppo.algorithms.config import TrainConfig


@pytest.mark.parametrize("thing", [nnx.relu, nnx.swish, jax.nn.gelu, TrainConfig, optax.adam, len])
def test_a_path_leads_back_to_the_same_thing(thing):
    path = import_path_of(thing)
    assert path is not None
    assert resolve_import_path(path) is thing


def test_functions_are_named_as_users_know_them():
    assert import_path_of(nnx.relu) == "flax.nnx:relu"
    assert import_path_of(TrainConfig) == "nnx_ppo.algorithms.config:TrainConfig"


def test_what_cannot_be_imported_has_no_path():
    def local():
        pass

    for thing in (local, lambda: 0, functools.partial(len, []), 3, "text", None):
        assert import_path_of(thing) is None


@pytest.mark.parametrize(
    "path, error",
    [
        ("no_colon", ValueError),
        (":name", ValueError),
        ("no_such_module_here:name", ImportError),
        ("nnx_ppo.algorithms.config:NoSuchName", AttributeError),
    ],
)
def test_paths_that_lead_nowhere_raise(path, error):
    with pytest.raises(error):
        resolve_import_path(path)
