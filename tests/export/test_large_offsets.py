"""A normalizer with a mean a million standard deviations from zero keeps the parity bound.

`x - mean` is exact there, and must stay: folded into the weights behind it, it would cancel.
"""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from export_networks import OBS, population_graph, sampler, trunk_policy
from flax import nnx
from random_network_layers import with_statistics

from export import export_policy, verify_parity
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.delay import Delay
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM

MEAN, STD = 1e4, 1e-2


def mlp(rngs):
    return make_mlp_actor_critic(OBS, 2, [32, 32], [8], rngs)


def delayed_observations(rngs):
    """What is normalized is three steps old; before there is such a step, it is the mean."""
    trunk = [Dense(OBS, 16, rngs, activation=nnx.swish), Dense(16, 4, rngs), sampler(rngs)]
    return Sequential([Delay(jp.zeros(OBS), 3, initial_value=MEAN), Normalizer(OBS), *trunk])


def delayed_features(rngs):
    return trunk_policy([Delay(jp.zeros(OBS), 2), LSTM(OBS, 8, rngs)], 8, rngs)


SLOW = [pytest.param(f, marks=pytest.mark.slow) for f in (delayed_observations, delayed_features)]


@pytest.mark.parametrize("factory", [mlp, population_graph, *SLOW])
def test_large_offsets_keep_the_parity_bound_in_every_format(tmp_path, factory):
    network = factory(nnx.Rngs(0))
    for _, module in nnx.iter_modules(network):
        if isinstance(module, Normalizer):
            spec = jax.ShapeDtypeStruct((OBS,), jp.float32)
            with_statistics(module, spec, lambda _: (MEAN, STD))
    bundle = export_policy(network, np.zeros(OBS, np.float32), tmp_path / "policy")
    report = verify_parity(bundle, network, steps=100, batch_sizes=[1, 3])
    worst = {
        (c.runtime, port.name): port.max_abs_error
        for c in report.comparisons
        for port in c.ports
        if port.violations
    }
    assert report.passed, worst
    assert {c.runtime for c in report.comparisons} == set(bundle.manifest.artefacts)
    # The observations are worth the test: they are near the mean and spread the actions.
    assert np.ptp(bundle.golden["action"], axis=0).min() > 1e-3
    assert abs(bundle.golden["obs"] - MEAN).min() < STD
