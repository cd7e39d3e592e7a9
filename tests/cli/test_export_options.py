"""What `nnx-ppo export` lets people choose reaches the bundle."""

import json
from pathlib import Path

import pytest

from nnx_ppo.cli import main
from serving import read_bundle

GRAPH = "nnx_ppo.environments.policies:make_delayed_graph_policy"
SIZES = {"observation_size": 4, "action_size": 1, "hidden_size": 32, "sensor_features": 16}


def export(tmp_path: Path, *options: str) -> int:
    return main(
        [
            *("export", "--network", GRAPH, "--network-arguments", json.dumps(SIZES)),
            *("--observation-shapes", "[4]", "--out", str(tmp_path / "policy"), *options),
        ]
    )


def test_every_choice_of_an_export_has_an_option(tmp_path: Path) -> None:
    options = (
        *("--formats", "onnx,stablehlo", "--stablehlo-platforms", "cpu,cuda"),
        *("--opset", "17", "--onnx-external-data", "--onnx-weights", "float16"),
        *("--onnx-int8-min-weights", "2000", "--reset-input", "--apply-action-scaling"),
        *("--metadata", '{"action_scale": 2.0}', "--extra-outputs", "value,distribution"),
    )
    assert export(tmp_path, *options) == 0
    manifest = read_bundle(tmp_path / "policy").manifest
    model = manifest.artefacts["onnx"]
    assert model.opset == 17 and model.details["float16_tensors"] > 0
    assert {file.path.rpartition("/")[2] for file in model.files} == {
        *["policy.onnx", "policy.onnx.data"]
    }
    assert "int8_layers" in model.details and model.details["parity_bound"] >= 1e-2
    assert manifest.artefacts["stablehlo"].details["platforms"] == "cpu,cuda"
    assert manifest.reset_port is not None and manifest.applied_to_action == ["action_scale"]
    names = [port.name for port in manifest.extra_output_ports]
    assert names == ["distribution.mu", "distribution.sigma", "value"]


def test_options_that_do_not_go_together_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, "--opset", "9", "--onnx-int8-min-weights", "10") == 2
    assert "int8 layers need opset 11 or newer, got opset 9" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
