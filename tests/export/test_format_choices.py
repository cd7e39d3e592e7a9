"""Platforms and opsets that a user may choose."""

from __future__ import annotations

import export_networks
import jax
import onnx
import pytest

from export import OnnxOptions, export_policy, verify_parity
from serving import BundleError, load_policy, self_test


def test_one_stablehlo_file_serves_all_platforms(tmp_path):
    network, observation = export_networks.make("lstm")
    every = ("tpu", "cuda", "rocm", "cpu")
    bundle = export_policy(
        network, observation, tmp_path / "p", formats=["stablehlo"], stablehlo_platforms=every
    )
    assert bundle.manifest.artefacts["stablehlo"].details["platforms"] == "cpu,cuda,rocm,tpu"
    exported = jax.export.deserialize(bytearray(bundle.artefact_bytes("stablehlo")))
    assert set(exported.platforms) == set(every)
    assert self_test(load_policy(bundle, "stablehlo")).passed
    report = verify_parity(bundle, network, steps=40, batch_sizes=(1, 3), write=False)
    assert report.passed, report.summary


def test_a_file_for_another_platform_says_so_on_this_one(tmp_path):
    network, observation = export_networks.make("mlp")
    bundle = export_policy(
        network, observation, tmp_path / "p", formats=["stablehlo"], stablehlo_platforms=["cuda"]
    )
    with pytest.raises(BundleError, match=r"made for \['cuda'\], not for the CPU; export again"):
        load_policy(bundle, "stablehlo")


@pytest.mark.parametrize("opset", [9, 15])
def test_an_older_opset_acts_the_same(tmp_path, opset):
    network, observation = export_networks.make("lstm")
    bundle = export_policy(
        network, observation, tmp_path / "p", formats=["onnx"], onnx=OnnxOptions(opset=opset)
    )
    artefact = bundle.manifest.artefacts["onnx"]
    model = onnx.load(bundle.artefact_path("onnx"))
    assert artefact.opset == opset == model.opset_import[0].version
    assert self_test(load_policy(bundle)).passed
