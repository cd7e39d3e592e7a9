"""inspect, selftest, bench and run on a whole bundle."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import serving
from nnx_ppo.cli import main

SVG = "{http://www.w3.org/2000/svg}"
RUNTIMES = {"stablehlo", "saved_model", "saved_model_xla", "onnx"}


def result(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> dict[str, Any]:
    assert main([*map(str, argv), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_inspect_names_tensors_files_and_metadata(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = result(capsys, "inspect", graph_bundle)
    assert [port["shape"] for port in data["ports"]["observation"]] == [[4]]
    assert [port["shape"] for port in data["ports"]["action"]] == [[1]]
    assert set(data["artefacts"]) == RUNTIMES
    onnx = graph_bundle / "onnx" / "policy.onnx"
    assert data["artefacts"]["onnx"]["size"] == onnx.stat().st_size
    assert data["metadata"]["joint_names"] == ["pole"]
    assert data["verdict"]["state"] == "unverified"
    assert data["structure"]["graphs"][0]["populations"][0]["name"] == "sensors"
    assert main(["inspect", str(graph_bundle)]) == 0
    text = capsys.readouterr().out
    assert "Not verified yet" in text.splitlines()[4]
    assert "control rate  100 Hz, 10.0 ms per step" in text
    assert "robot        bench" in text


def test_selftest_passes_in_every_runtime(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = result(capsys, "selftest", graph_bundle, "--runtime", "all")
    assert data["passed"] is True
    assert set(data["runtimes"]) == RUNTIMES
    assert main(["selftest", str(graph_bundle)]) == 0
    assert "passed" in capsys.readouterr().out


def test_selftest_finds_a_policy_that_acts_otherwise(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = serving.Session.step
    monkeypatch.setattr(
        serving.Session, "step", lambda self, obs, **rows: exact(self, obs, **rows) + 1e-3
    )
    data = result(capsys, "selftest", graph_bundle, status=1)
    assert data["passed"] is False
    assert main(["selftest", str(graph_bundle)]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_bench_times_every_runtime_at_every_batch_size(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = result(capsys, "bench", graph_bundle, "--steps", 20, "--batch-sizes", "1,4")
    assert {(row["runtime"], row["batch_size"]) for row in data["results"]} == {
        (runtime, batch) for runtime in RUNTIMES for batch in (1, 4)
    }
    for row in data["results"]:
        assert 0 < row["median_s"] <= row["p99_s"] <= row["p999_s"] <= row["max_s"] < 1
        assert 0 < row["cpu_s"] < 1
        assert sum(row["histogram"]["counts"]) == 20


def test_latencies_are_kept_in_the_bundle_and_shown_by_inspect_and_report(
    graph_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(graph_bundle, tmp_path / "policy"))
    result(capsys, "bench", bundle, "--runtime", "onnx", "--steps", 30, "--write")
    data = result(capsys, "inspect", bundle)
    assert data["latency"]["results"][0]["steps"] == 30
    assert data["latency"]["machine"]["cores"] >= 1
    page = tmp_path / "page.html"
    data = result(capsys, "report", bundle, "--out", page)
    assert data == {"report": str(page), "verdict": "unverified", "headline": "Not verified yet"}
    assert "Measured by <code>nnx-ppo bench</code>" in page.read_text("utf-8")
    # Another export has other latencies, whatever file lies beside it.
    manifest = bundle / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert result(capsys, "inspect", bundle)["latency"] is None
    assert main(["inspect", str(bundle)]) == 0
    assert "latency.json belongs to another export" in capsys.readouterr().out


def test_diff_tells_bundles_apart_and_equal_ones_are_the_same(
    graph_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(graph_bundle, tmp_path / "policy"))
    data = result(capsys, "diff", graph_bundle, bundle)
    assert data["same"] is True and data["differences"] == []
    manifest = bundle / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"bench"', '"field"'))
    data = result(capsys, "diff", graph_bundle, bundle, status=1)
    assert data["differences"] == [
        {"section": "metadata", "what": "extra.robot", "first": "bench", "second": "field"}
    ]
    assert result(capsys, "diff", graph_bundle, bundle, "--ignore", "metadata")["same"] is True
    assert main(["diff", str(graph_bundle), str(bundle)]) == 1
    assert "extra.robot  bench  field" in capsys.readouterr().out
    assert main(["diff", str(graph_bundle), str(tmp_path)]) == 2
    assert main(["diff", str(graph_bundle), str(bundle), "--ignore", "colour"]) == 2
    assert "no section 'colour'; known are interface" in capsys.readouterr().err


def test_bench_keeps_the_rate_that_it_is_given(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("bench", graph_bundle, "--runtime", "onnx", "--steps", 20, "--rate-hz", 500)
    data = result(capsys, *argv)
    assert data["rate_hz"] == 500
    assert [row["steps"] for row in data["results"]] == [20]


def test_bench_draws_how_many_steps_took_longer_than_a_time(
    graph_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "times.svg"
    argv = ("bench", graph_bundle, "--steps", 40, "--batch-sizes", "1,2", "--plot", plot)
    data = result(capsys, *argv)
    root = ElementTree.parse(plot).getroot()
    texts = [element.text for element in root.iter(SVG + "text")]
    curves = list(root.iter(SVG + "polyline"))
    for row in data["results"]:
        assert f"{row['runtime']}, batch {row['batch_size']}" in texts
    assert len(curves) == len(data["results"])
    for curve in curves:
        points = [[float(n) for n in point.split(",")] for point in curve.get("points", "").split()]
        assert len(points) > 2
        # Times and ranks only grow to the right and down, within the frame.
        assert points == sorted(points)
        assert all(72 <= x <= 570 and 24 <= y <= 364 for x, y in points)
    # Found out before anything is measured.
    assert main(["bench", str(graph_bundle), "--plot", str(tmp_path / "no" / "times.svg")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_run_without_a_plant_replays_golden_observations_at_the_bundles_rate(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = result(capsys, "run", graph_bundle, "--duration-s", 0.5)
    assert data["loop"]["rate_hz"] == 100.0
    # A busy machine may miss some of the 50 deadlines, the last of them after the end.
    assert 0 < data["loop"]["steps"] <= 50 <= data["loop"]["steps"] + data["loop"]["misses"]
    assert data["plant"] is None


def test_run_says_when_the_budget_of_misses_is_spent(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> np.ndarray:
        threading.Event().wait(0.03)
        return np.zeros(1, np.float32)

    monkeypatch.setattr(serving.Session, "step", slow)
    argv = ("run", graph_bundle, "--duration-s", 0.3, "--miss-budget", 0.1)
    data = result(capsys, *argv, status=1)
    assert data["within_budget"] is False
    assert data["missed_share"] > 0.5


class Counter:
    """A plant whose reward is the step's number, with episodes of ten steps."""

    def __init__(self, observation: Any) -> None:
        self.observation = observation
        self.steps = 0
        self.actions: list[np.ndarray] = []

    def reset(self) -> Any:
        self.steps = 0
        return self.observation

    def step(self, action: np.ndarray) -> tuple[Any, float, bool]:
        self.steps += 1
        self.actions.append(action)
        return self.observation, float(self.steps), self.steps == 10


def serve(plant: Counter) -> str:
    """Serve a plant on a thread of its own and return its address."""
    address: list[str] = []
    listening = threading.Event()

    def listen(bound: str) -> None:
        address.append(bound)
        listening.set()

    threading.Thread(
        target=serving.serve_plant,
        args=(plant.reset, plant.step),
        kwargs={"on_listening": listen, "accept_timeout_s": 30.0},
        daemon=True,
    ).start()
    assert listening.wait(30.0)
    return address[0]


def test_run_acts_on_a_plant_and_resets_with_its_episodes(
    graph_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant = Counter(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    data = result(capsys, "run", graph_bundle, "--plant", serve(plant), "--duration-s", 1)
    whole, rest = divmod(data["loop"]["steps"], 10)
    assert data["plant"]["returns"] == [55.0] * whole
    assert data["plant"]["unfinished_return"] == rest * (rest + 1) / 2
    # The same observation each time: an episode acts as the one before only if the carry was reset.
    np.testing.assert_array_equal(plant.actions[:10], plant.actions[10:20])
    assert not np.array_equal(plant.actions[0], plant.actions[1])


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        ({"obs": np.zeros(4, np.float32)}, "obs"),
        (np.zeros(5, np.float32), r"\(5,\).*\(4,\)"),
        (np.zeros(4, np.float64), "float64.*float32"),
        (np.array([0, np.nan, 0, 0], np.float32), "finite|NaN"),
    ],
)
def test_run_refuses_an_observation_that_does_not_fit(
    graph_bundle: Path, observation: Any, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = serve(Counter(observation))
    assert main(["run", str(graph_bundle), "--plant", address, "--duration-s", "0.1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    import re

    assert re.search(expected, line), line
