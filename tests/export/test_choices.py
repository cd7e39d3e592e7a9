"""Arguments of an export that do not fit are refused before anything is written."""

from __future__ import annotations

import export_networks
import pytest

from export import ExportError, export_policy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stablehlo_platforms": ["gpu0"]}, "stablehlo_platforms must be"),
        ({"stablehlo_platforms": "cpu"}, "stablehlo_platforms must be"),
        ({"stablehlo_platforms": ()}, "stablehlo_platforms must be"),
        ({"opset": 6}, "opset must be an integer from 7 to 18"),
        ({"control_rate_hz": float("nan")}, "control_rate_hz must be"),
        ({"opset": 99}, "opset must be an integer from 7 to 18"),
    ],
)
def test_choices_that_do_not_exist_leave_nothing_behind(tmp_path, options, message):
    network, observation = export_networks.make("mlp")
    with pytest.raises(ExportError, match=message):
        export_policy(network, observation, tmp_path / "policy", **options)
    assert list(tmp_path.iterdir()) == []
