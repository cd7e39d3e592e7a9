import json
from pathlib import Path

import numpy as np

from nnx_ppo.cli.training import RETURN, MetricsLog


def steps_in(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_each_iteration_is_a_line_one_iteration_late(tmp_path: Path) -> None:
    file = tmp_path / "run" / "metrics.jsonl"
    log = MetricsLog(file)
    log({"loss": np.float32(0.5), RETURN: np.float32(3.0)}, 10)
    assert not file.exists()
    log({"loss": np.float32("nan")}, 20)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 10, "loss": 0.5, RETURN: 3.0}
    ]
    log.flush()
    log.flush()
    assert json.loads(file.read_text().splitlines()[-1]) == {"step": 20, "loss": None}
    assert steps_in(file) == [10, 20]


def test_a_resumed_run_drops_what_the_interrupted_one_wrote_after_its_checkpoint(
    tmp_path: Path,
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 10}\n{"step": 20}\n{"step": 30}\n{"ste')
    log = MetricsLog(file, first_step=20)
    log({}, 30)
    log.flush()
    assert steps_in(file) == [10, 20, 30]
