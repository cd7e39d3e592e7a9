"""Passes are switched off by name; what an export cannot do without stays."""

from __future__ import annotations

import functools
from pathlib import Path

import export_networks
import pytest

from export import ExportError, export_policy
from export.passes import pipeline
from export.step import build_step
from serving import read_bundle

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["fold_scale"], r"there is no pass 'fold_scale'; those that can be switched off are \[.*"),
        (["inline_calls"], "'inline_calls' cannot be switched off, since nothing that follows"),
        (["fold_constants"], "'fold_constants' cannot be switched off, since weights"),
        (["remove_dead_code"], "'remove_dead_code' cannot be switched off, since what no action"),
        ("fold_scales", r"must be a list of names, .*, got 'fold_scales'"),
        ([1], r"must be a list of names, .*, got \[1\]"),
    ],
)
def test_a_name_that_cannot_be_switched_off_is_one_error_with_all_that_can(
    tmp_path, types_unchecked, names, message
):
    network, observation = export_networks.make("mlp")
    with pytest.raises(ExportError, match=rf"disabled_passes:? .*{message}") as caught:
        export_policy(network, observation, tmp_path / "policy", disabled_passes=names)
    assert all(name in str(caught.value) for name in pipeline.SWITCHABLE)
    assert list(tmp_path.iterdir()) == []


def test_the_bundle_says_what_was_switched_off(tmp_path):
    network, observation = export_networks.make("mlp")
    options = {"formats": ["stablehlo"], "disabled_passes": ["take_slots", "fold_scales"]}
    export_policy(network, observation, tmp_path / "policy", **options)
    manifest = read_bundle(tmp_path / "policy").manifest
    assert manifest.disabled_passes == ["fold_scales", "take_slots"]


@pytest.mark.parametrize("name", pipeline.SWITCHABLE)
def test_without_it_a_step_has_more_operations(name):
    network = {"drop_dead_columns": "mlp", "fold_scales": "mlp", "take_slots": "delay"}.get(
        name, "population_graph"
    )
    assert operations(network, ()) < operations(network, (name,))


@functools.cache
def operations(network, disabled):
    step = build_step(*export_networks.make(network), disabled_passes=disabled)
    assert step.disabled_passes == disabled
    return len(step.closed.jaxpr.eqns) + len(step.portable.jaxpr.eqns)


@pytest.mark.parametrize("name", [*pipeline.SWITCHABLE, *pipeline.REQUIRED])
def test_the_docs_name_every_pass(name):
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")
    if name in pipeline.SWITCHABLE:
        assert f"`{name}`" in (export_policy.__doc__ or "")
