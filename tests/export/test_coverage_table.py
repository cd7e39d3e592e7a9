"""docs/coverage.md says what tests compared, and what holds it to that tells a wrong line."""

from __future__ import annotations

import types

import coverage_plugin
import coverage_table
import numpy as np
import pytest
from primitive_coverage import kinds_of

FLOAT_KINDS = {"ordinary", "huge", "tiny", "inf", "-inf", "nan", "-0.0"}
BOTH = ("saved_model", "onnx")
RECORD = {
    *(("tanh", format, "float32", kind) for format in BOTH for kind in FLOAT_KINDS),
    ("tanh", "saved_model", "float64", "ordinary"),
    ("tanh", "saved_model", "float32", "subnormal"),
    *(
        ("clz", format, "uint8", kind)
        for format in BOTH
        for kind in ("ordinary", "lowest", "highest")
    ),
}
PRIMITIVES = ["clz", "tanh", "untested"]
PAGE = coverage_table.render(coverage_table.rows_of(RECORD, PRIMITIVES), "0.10")


def test_the_page_has_what_was_compared_in_both_formats_and_no_more():
    assert "**1 of 3 primitives**" in PAGE and "1 more are about bits" in PAGE
    assert "| `tanh` | f32 f64 | f32 | f32 | yes | huge tiny | inf -inf nan -0.0 |" in PAGE
    assert "| `clz` | u8 | u8 | u8 | yes | lowest highest | has none |" in PAGE
    assert "| `untested` |  |  |  |  |  |  |" in PAGE
    assert coverage_table.faults(PAGE, RECORD, PRIMITIVES) == []


def test_a_claim_that_no_test_made_is_named():
    less = {entry for entry in RECORD if entry[1:] != ("onnx", "float32", "nan")}
    assert coverage_table.faults(PAGE, less, PRIMITIVES) == [
        "it says tanh f32 values nan, which no test compared"
    ]
    less = {entry for entry in RECORD if entry[2] != "float64"}
    assert coverage_table.faults(PAGE, less, PRIMITIVES) == [
        "it says tanh saved_model f64, which no test compared"
    ]


def test_rules_without_a_line_lines_without_a_rule_and_a_wrong_count_are_named():
    faults = coverage_table.faults(PAGE, RECORD, ["clz", "new", "tanh"])
    assert faults == ["it lacks new, which has a rule", "it has untested, which has no rule"]
    faults = coverage_table.faults(PAGE.replace("**1 of", "**2 of"), RECORD, PRIMITIVES)
    assert faults == ["its count is not that of its rows, 1 of 3"]


def test_the_committed_page_is_as_written_and_has_a_hundred_primitives():
    text = coverage_plugin.TABLE.read_text()
    rows = coverage_table.parse(text)
    version = text.split("Made with JAX ")[1].split(".\n")[0]
    assert coverage_table.render(rows, version) == text
    assert sum(row.is_full for row in rows) >= 100


@pytest.mark.parametrize(
    ("collected", "passed", "reason"),
    [
        (["a.py::x", "b.py::y"], ["a.py::x", "b.py::y"], ""),
        (["a.py::x"], ["a.py::x"], "b.py was not run"),
        (["a.py::x", "b.py::y"], ["a.py::x"], "1 of 2 tests of the rules did not run or pass"),
    ],
)
def test_only_a_run_of_all_tests_of_the_rules_says_anything(collected, passed, reason):
    assert coverage_plugin.what_is_missing(["a.py", "b.py"], collected, passed) == reason


@pytest.mark.parametrize(("page", "status"), [(PAGE, 0), (PAGE.replace("f64", "f64 f16"), 1)])
def test_a_wrong_line_fails_the_run_of_two_workers(page, status, tmp_path, monkeypatch):
    table = tmp_path / "coverage.md"
    table.write_text(page)
    monkeypatch.setattr(coverage_plugin, "TABLE", table)
    monkeypatch.setattr(coverage_plugin, "all_files", lambda: {"test_a.py"})
    config = types.SimpleNamespace(args=["tests"], getoption=lambda name: False)
    controller = coverage_plugin.CoverageTable(config)
    halves = [
        RECORD - {entry for entry in RECORD if entry[1] == f} for f in ("onnx", "saved_model")
    ]
    for half in halves:
        content = {"collected": ["test_a.py::x"], "compared": sorted(half), "jax": "0.10"}
        worker = {"coverage": coverage_plugin.json.dumps(content | {"primitives": PRIMITIVES})}
        controller.pytest_testnodedown(types.SimpleNamespace(workeroutput=worker), None)
    report = types.SimpleNamespace(when="call", passed=True, nodeid="test_a.py::x")
    controller.pytest_runtest_logreport(report)
    session = types.SimpleNamespace(exitstatus=0)
    monkeypatch.setattr(controller, "_own_record", lambda: None)
    controller.pytest_sessionfinish(session)
    assert session.exitstatus == status
    assert ("make coverage-table" in controller.lines[0]) == bool(status)


def test_kinds_of_numbers():
    floats = np.array([1, 1e30, -1e-30, np.inf, -np.inf, np.nan, -0.0, 1e-40], np.float32)
    assert kinds_of(floats, "float32") == FLOAT_KINDS | {"subnormal"}
    assert kinds_of(np.array([0.0], np.float32), "float32") == set()
    # A half travels as float32.
    assert kinds_of(np.array([1e-6, 300], np.float32), "float16") == {"subnormal", "huge"}
    assert kinds_of(np.array([-128, 5], np.int8), "int8") == {"lowest", "ordinary"}
    assert kinds_of(np.array([0, 255], np.uint8), "uint8") == {"lowest", "highest"}
