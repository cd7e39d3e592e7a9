import numpy as np
import pytest

from serving.distribution import Distribution


def test_quantiles_are_within_one_percent_of_the_exact_ones():
    samples = np.random.default_rng(0).lognormal(-9.0, 1.5, 20_000)
    distribution = Distribution()
    for sample in samples:
        distribution.add(float(sample))
    for fraction in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = float(np.quantile(samples, fraction, method="inverted_cdf"))
        assert distribution.quantile_s(fraction) == pytest.approx(exact, rel=0.01)
    summary = distribution.summary()
    assert summary.count == 20_000
    assert summary.max_s == samples.max()
    assert summary.mean_s == pytest.approx(samples.mean())


def test_no_samples_give_zeros():
    summary = Distribution().summary()
    assert (summary.count, summary.mean_s, summary.median_s, summary.p99_s, summary.max_s) == (
        *(0, 0.0, 0.0, 0.0, 0.0),
    )


def test_extreme_samples_are_counted():
    distribution = Distribution()
    for sample in (-1.0, 0.0, 1e-12, 1e9):
        distribution.add(sample)
    assert distribution.summary().count == 4
    assert distribution.quantile_s(0.5) == 0.0
    assert distribution.summary().max_s == 1e9


def test_one_sample_is_every_quantile():
    distribution = Distribution()
    distribution.add(0.004)
    assert distribution.summary().median_s == pytest.approx(0.004, rel=0.01)
    assert distribution.summary().p99_s == distribution.summary().median_s
