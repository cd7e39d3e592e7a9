"""What is beside a manifest is read with the same care as what is in it."""

import json
import math

import numpy as np
import pytest

from serving import BundleError
from serving.latency import (
    LATENCY_FILE,
    LatencyHistogram,
    latency_histogram,
    read_latency,
    this_machine,
)
from serving.parity_record import PARITY_FILE, read_parity


def port(**changes):
    values = {
        "name": "action",
        "max_abs_error": 1e-7,
        "max_rel_error": "inf",
        "max_ulp": 3,
        "worst_step": 5,
        "worst_row": 0,
        "equal_nans": 0,
        "violations": 0,
    }
    return values | changes


def comparison(**changes):
    values = {
        "runtime": "onnx",
        "mode": "free_running",
        "batch_size": 1,
        "tolerance": 1e-5,
        "ports": [port()],
        "step_median_us": 20.0,
        "step_p99_us": 40.0,
        "error_over_time": [0.0, 1e-7],
        "step_histogram": {"first_bin": 26, "counts": [1, 0, 2]},
    }
    return values | changes


def record(**changes):
    values = {
        "report_version": 3,
        "policy": "p",
        "steps": 3,
        "seed": 0,
        "observations": "generated",
        "manifest_sha256": "ab",
        "comparisons": [comparison()],
    }
    return values | changes


def write(directory, values, name=PARITY_FILE):
    (directory / name).write_text(values if isinstance(values, str) else json.dumps(values))


def test_a_record_is_read_with_its_infinities_and_what_newer_versions_added(tmp_path):
    write(tmp_path, record(artefact_bytes={"onnx": 5}, passed=True))
    read = read_parity(tmp_path)
    assert read is not None and read.passed
    assert read.comparisons[0].ports[0].max_rel_error == math.inf
    assert read.worst.worst.name == "action"


def test_a_record_of_the_first_version_has_no_histogram(tmp_path):
    old = comparison()
    del old["step_histogram"]
    write(tmp_path, record(report_version=1, manifest_sha256="", comparisons=[old]))
    read = read_parity(tmp_path)
    assert read is not None and read.comparisons[0].step_histogram is None


def test_the_verdict_is_that_of_the_numbers_not_of_the_file(tmp_path):
    write(tmp_path, record(passed=True, comparisons=[comparison(ports=[port(violations=1)])]))
    read = read_parity(tmp_path)
    assert read is not None and not read.passed


def test_the_worst_comparison_is_the_one_closest_to_its_own_bound(tmp_path):
    near = comparison(runtime="stablehlo", tolerance=2e-6, ports=[port(max_abs_error=1e-6)])
    far = comparison(ports=[port(max_abs_error=2e-6)])
    write(tmp_path, record(comparisons=[far, near]))
    read = read_parity(tmp_path)
    assert read is not None and read.worst.runtime == "stablehlo"


def test_what_rounding_does_to_the_network_is_part_of_the_bound(tmp_path):
    astray = comparison(ports=[port(max_abs_error=1e-3, rounding_effect=1e-2)])
    near = comparison(runtime="stablehlo", ports=[port(max_abs_error=9e-6)])
    write(tmp_path, record(comparisons=[astray, near]))
    read = read_parity(tmp_path)
    assert read is not None and read.worst.runtime == "stablehlo"
    assert [c.rounding_effect for c in read.comparisons] == [1e-2, 0.0]


def test_an_error_over_time_may_be_infinite(tmp_path):
    write(tmp_path, record(comparisons=[comparison(error_over_time=[1e-7, "inf"])]))
    read = read_parity(tmp_path)
    assert read is not None and read.comparisons[0].error_over_time == [1e-7, math.inf]


def test_no_record_is_none(tmp_path):
    assert read_parity(tmp_path) is None
    assert read_latency(tmp_path) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("", "no record"),
        ("[]", "no record"),
        ("[" * 100_000, "no record"),
        (record(report_version=4), "version 4"),
        (record(comparisons=[]), "compares nothing"),
        (record(comparisons=[comparison(ports=[])]), "compares nothing"),
        (record(comparisons=[comparison(tolerance=-1.0)]), "-1.0"),
        (record(comparisons=[comparison(error_over_time=["x"])]), "error_over_time"),
        (record(comparisons=[comparison(error_over_time=[-1.0])]), "-1.0"),
        (record(comparisons=[comparison(error_over_time=["nan"])]), "nan is no distance"),
        (record(comparisons=[comparison(ports=[port(rounding_effect=-2.0)])]), "-2.0"),
        (
            record(comparisons=[comparison(step_histogram={"first_bin": 10**9, "counts": [1]})]),
            "histogram",
        ),
        (
            record(comparisons=[comparison(step_histogram={"first_bin": 0, "counts": [-1]})]),
            "histogram",
        ),
    ],
)
def test_what_is_no_proof_is_refused(tmp_path, values, message):
    write(tmp_path, values)
    with pytest.raises(BundleError, match=message) as caught:
        read_parity(tmp_path)
    assert caught.value.file == tmp_path / PARITY_FILE


def test_a_directory_in_place_of_the_file_is_refused(tmp_path):
    (tmp_path / PARITY_FILE).mkdir()
    with pytest.raises(BundleError, match="unreadable"):
        read_parity(tmp_path)


def test_latencies_are_refused_unless_they_are_numbers(tmp_path):
    result = {"runtime": "onnx", "batch_size": 1, "steps": 9, "median_s": 1e-5, "p99_s": 2e-5}
    result |= {"max_s": 1e-3, "histogram": {"first_bin": 20, "counts": [9]}}
    values = {"manifest_sha256": "", "machine": this_machine(), "rate_hz": None}
    write(tmp_path, values | {"results": [result]}, LATENCY_FILE)
    read = read_latency(tmp_path)
    assert read is not None and read.results[0].histogram.counts == [9]
    write(tmp_path, values | {"results": [result | {"p99_s": -1.0}]}, LATENCY_FILE)
    with pytest.raises(BundleError, match="no record of latencies"):
        read_latency(tmp_path)


def test_a_histogram_counts_every_step_between_its_edges():
    times = np.random.default_rng(0).lognormal(3.0, 1.0, 5000)
    histogram = latency_histogram(times)
    edges = histogram.edges_us()
    assert sum(histogram.counts) == 5000
    assert edges[0] <= times.min() < edges[1] and edges[-2] <= times.max() < edges[-1]
    expected, _ = np.histogram(times, edges)
    assert histogram.counts == expected.tolist()


def test_edges_of_decades_begin_a_bin():
    assert latency_histogram([1.0, 10.0, 100.0, 1000.0]).first_bin == 0
    assert latency_histogram([1000.0]) == LatencyHistogram(60, [1])


def test_times_of_nothing_and_of_no_steps_are_counted():
    assert latency_histogram([]).counts == []
    assert latency_histogram([0.0, -1.0]).counts == [2]
