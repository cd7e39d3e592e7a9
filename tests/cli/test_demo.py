import dataclasses
import json
from pathlib import Path

import pytest

from nnx_ppo.algorithms.config import TrainConfig
from nnx_ppo.cli import demo_setup, main


def test_the_demo_goes_the_whole_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_small_iteration(total_steps: int, seed: int, episode_length: int) -> TrainConfig:
        config = TrainConfig(seed=seed)
        config.ppo = dataclasses.replace(
            config.ppo, total_steps=1, n_envs=8, rollout_length=8, n_epochs=1, n_minibatches=1
        )
        config.eval = dataclasses.replace(config.eval, n_envs=4, max_episode_length=20)
        return config

    monkeypatch.setattr(demo_setup, "demo_config", one_small_iteration)
    out = tmp_path / "demo"
    short = ["--parity-steps", "60", "--bench-steps", "20"]
    status = main(["demo", "--out", str(out), "--duration-s", "0.5", *short, "--json"])
    captured = capsys.readouterr()
    assert status in (0, 1), captured.err
    data = json.loads(captured.out)
    # Hardly trained, its actions are noise; whether they are equal within bounds is not asked here.
    assert status == (0 if data["parity_passed"] else 1)
    assert set(data["returns"]) == {"graph", "memoryless"}
    assert set(data["formats"]) == {"stablehlo", "saved_model", "saved_model_xla", "onnx"}
    for row in data["formats"].values():
        assert row["size"] > 1000
        assert row["max_abs_error"] < 1e-3
        assert 0 < row["median_s"] <= row["p99_s"]
    assert 0 < data["loop"]["steps"] <= 50
    assert data["loop"]["return"] == pytest.approx(data["loop"]["jax_return"], abs=1e-3)
    assert set(data["imported_by_the_acting_process"].values()) == {False}
    assert Path(data["report"]).is_file()
    assert Path(data["bundle"]).is_dir()
    assert (out / "graph" / "metrics.jsonl").is_file()
