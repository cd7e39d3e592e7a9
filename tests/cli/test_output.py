import io
import json

import numpy as np

from nnx_ppo.cli.output import Output, table, to_jsonable
from serving.overview import byte_size


def test_json_result_is_one_document_without_nan() -> None:
    results, notes = io.StringIO(), io.StringIO()
    output = Output(as_json=True, results=results, notes=notes)
    output.note("on the way")
    output.result({"error": float("nan"), "steps": np.int64(3), "row": np.ones(2)}, "text")
    assert json.loads(results.getvalue()) == {"error": None, "steps": 3, "row": [1.0, 1.0]}
    assert notes.getvalue() == "on the way\n"


def test_text_result_is_for_people() -> None:
    results = io.StringIO()
    Output(as_json=False, results=results, notes=io.StringIO()).result({"a": 1}, "a is 1")
    assert results.getvalue() == "a is 1\n"


def test_tables_line_up() -> None:
    assert table(("name", "us"), [("onnx", "9.1"), ("saved_model", "430.0")]).splitlines() == [
        "name            us",
        "-----------  -----",
        "onnx           9.1",
        "saved_model  430.0",
    ]


def test_sizes_are_written_for_people() -> None:
    assert [byte_size(n) for n in (12, 1234, 5_600_000, 7e9)] == [
        "12 B",
        "1.2 kB",
        "5.6 MB",
        "7.0 GB",
    ]


def test_infinities_and_mappings_become_json() -> None:
    assert to_jsonable({1: (float("inf"), 2.5)}) == {"1": [None, 2.5]}


def test_what_an_encoding_lacks_is_written_otherwise() -> None:
    stored = io.BytesIO()
    results = io.TextIOWrapper(stored, encoding="ascii")
    Output(as_json=False, results=results).result({}, "23 µs → 人 é")
    assert stored.getvalue() == b"23 us -> \\u4eba \\xe9\n"
