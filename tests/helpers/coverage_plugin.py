"""Hold docs/coverage.md against what the tests of a run compared, or write it from that.

Under pytest-xdist each worker hands its record to the controller, which decides at the end of the
session. Only a run of all tests of the rules can tell that a line of the table is wrong; any other
says that it checks nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import coverage_table
import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "coverage.md"
TESTS = "test_lowering*.py"
OPTION = "--write-coverage-table"


def all_files() -> set[str]:
    """Names of the files with tests of the rules."""
    return {path.name for path in (ROOT / "tests" / "export").glob(TESTS)}


def what_is_missing(
    files: Collection[str], collected: Collection[str], passed: Collection[str]
) -> str:
    """Return why a run says nothing about the table, or an empty text if it does.

    Args:
        files: Names of all files with tests of the rules.
        collected: Node ids of the tests that were found in them, also those then deselected.
        passed: Node ids of those that passed.
    """
    absent = sorted(set(files) - {_file_of(node) for node in collected})
    if absent:
        return f"{absent[0]} was not run"
    failed = len(set(collected) - set(passed))
    return (
        f"{failed} of {len(set(collected))} tests of the rules did not run or pass"
        if failed
        else ""
    )


def _file_of(node: str) -> str:
    return node.split("::")[0].rsplit("/", 1)[-1]


class CoverageTable:
    """Hooks of the controller and of every worker."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.collected: set[str] = set()
        self.passed: set[str] = set()
        self.record: coverage_table.Record = set()
        self.primitives: set[str] = set()
        self.jax_version = ""
        self.lines: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note the tests before any is deselected."""
        self.collected |= {item.nodeid for item in items if _file_of(item.nodeid) in all_files()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what passed; the controller is told for all workers."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Take over what a worker has recorded."""
        self._merge(getattr(node, "workeroutput", {}).get("coverage"))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over the record, or decide."""
        own = self._own_record()
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["coverage"] = own  # pyright: ignore[reportAttributeAccessIssue]
            return
        self._merge(own)
        if not self.collected:
            return
        missing = what_is_missing(all_files(), self.collected, self.passed)
        if any("::" in argument for argument in self.config.args):
            missing = missing or "single tests were chosen"
        if missing:
            self.lines.append(f"docs/coverage.md was not checked: {missing}")
            return
        if self.config.getoption(OPTION):
            rows = coverage_table.rows_of(self.record, self.primitives)
            TABLE.write_text(coverage_table.render(rows, self.jax_version))
            self.lines.append(f"docs/coverage.md was written, {len(rows)} primitives")
            return
        self._check(session)

    def _check(self, session: pytest.Session) -> None:
        text = TABLE.read_text() if TABLE.exists() else ""
        if text and f"Made with JAX {self.jax_version}." not in text:
            self.lines.append(
                f"docs/coverage.md was not checked: it is not of JAX {self.jax_version}, whose "
                "functions consist of other primitives"
            )
            return
        faults = coverage_table.faults(text, self.record, self.primitives)
        if not faults:
            self.lines.append("docs/coverage.md says no more than this run compared")
            return
        self.lines.append("docs/coverage.md is wrong; run: make coverage-table")
        self.lines += [f"  {fault}" for fault in faults[:20]]
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what came of it."""
        for line in self.lines:
            terminalreporter.write_line(line)

    def _own_record(self) -> str | None:
        recorder = sys.modules.get("primitive_coverage")
        if recorder is None and not self.collected:
            return None
        import jax

        return json.dumps(
            {
                "collected": sorted(self.collected),
                "compared": sorted(recorder.COMPARED) if recorder else [],
                "jax": ".".join(jax.__version__.split(".")[:2]),
                "primitives": recorder.registered() if recorder else [],
            }
        )

    def _merge(self, record: str | None) -> None:
        if record is None:
            return
        content = json.loads(record)
        self.collected |= set(content["collected"])
        self.record |= {tuple(entry) for entry in content["compared"]}
        self.primitives |= set(content["primitives"])
        self.jax_version = content["jax"]
