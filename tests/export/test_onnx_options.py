"""How an ONNX file keeps its weights: in a file of their own, as float16, in int8 layers."""

from __future__ import annotations

import export_networks
import jax.numpy as jp
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import nnx
from onnx import TensorProto, helper, numpy_helper

from export import ExportError, OnnxOptions, export_policy, policy, verify_parity
from export.formats.onnx_storage import quantize_layers, store_as_float16
from nnx_ppo.networks.factories import make_mlp_actor_critic
from serving import BundleError, load_policy, read_bundle, self_test

OBSERVATION = np.zeros(8, np.float32)
CHOICES = {
    "float32": OnnxOptions(),
    "external": OnnxOptions(external_data=True),
    "float16": OnnxOptions(weights="float16"),
    "int8": OnnxOptions(int8_min_weights=10_000),
    "smallest": OnnxOptions(external_data=True, weights="float16", int8_min_weights=10_000),
}


@pytest.fixture(scope="module")
def network():
    made = make_mlp_actor_critic(8, 2, [256, 256], [8], nnx.Rngs(3), activation=nnx.tanh)
    return export_networks.with_statistics(made, OBSERVATION)


@pytest.fixture(scope="module")
def bundles(network, tmp_path_factory):
    directory = tmp_path_factory.mktemp("options")
    return {
        name: export_policy(network, OBSERVATION, directory / name, formats=["onnx"], onnx=options)
        for name, options in CHOICES.items()
    }


def size(bundle):
    return sum(file.size for file in bundle.manifest.artefacts["onnx"].files)


def report(bundle, network, **options):
    return verify_parity(bundle, network, steps=60, batch_sizes=(1, 3), write=False, **options)


def test_every_choice_acts_within_the_bound_that_its_manifest_states(bundles, network):
    bounds = {"float32": 1e-5, "external": 1e-5, "float16": 1e-2, "int8": 1e-1, "smallest": 1e-1}
    worst = {}
    for name, bundle in bundles.items():
        found = report(bundle, network)
        assert found.passed, found.summary
        assert {c.tolerance for c in found.comparisons} == {bounds[name]}
        assert self_test(load_policy(bundle)).passed
        worst[name] = found.worst_error("onnx")
        print(f"{name}: {size(bundle)} bytes, worst error {worst[name]:.1e}")
    assert worst["external"] == worst["float32"] < 1e-6
    assert 1e-6 < worst["float16"] < 2e-3 and 1e-4 < worst["int8"] < 5e-2


def test_a_tighter_bound_that_is_asked_for_is_kept(bundles, network):
    for name in ("float16", "int8"):
        found = report(bundles[name], network, tolerances={"onnx": 1e-5})
        assert not found.passed and {c.tolerance for c in found.comparisons} == {1e-5}
        assert not self_test(load_policy(bundles[name]), max_abs_error=1e-5).passed
    assert "1e-02" in report(bundles["float16"], network).summary


def test_files_become_smaller_as_promised(bundles):
    plain = size(bundles["float32"])
    assert plain > 270_000
    assert size(bundles["float16"]) < 0.52 * plain
    assert size(bundles["int8"]) < 0.35 * plain
    assert size(bundles["smallest"]) < 0.32 * plain
    details = bundles["smallest"].manifest.artefacts["onnx"].details
    assert details["int8_layers"] == 1 and details["float16_tensors"] == 2


def test_weights_beside_the_model_are_listed_hashed_and_used(bundles):
    bundle = bundles["external"]
    paths = {file.path: file for file in bundle.manifest.artefacts["onnx"].files}
    assert set(paths) == {"onnx/policy.onnx", "onnx/policy.onnx.data"}
    assert paths["onnx/policy.onnx"].size < 20_000 < paths["onnx/policy.onnx.data"].size
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    ours = load_policy(bundle).session().step(x)
    np.testing.assert_array_equal(ours, load_policy(bundles["float32"]).session().step(x))
    alone = onnxruntime.InferenceSession(
        bundle.artefact_path("onnx"), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(alone.run(None, {"obs": x[None]})[0][0], ours, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.unlink(), "policy.onnx.data: is missing; copy the whole bundle"),
        (lambda file: file.write_bytes(file.read_bytes()[:-4]), "policy.onnx.data: truncated"),
        (lambda file: file.write_bytes(b"x" + file.read_bytes()[1:]), "policy.onnx.data: altered"),
    ],
)
def test_weights_that_are_missing_or_altered_are_refused(network, tmp_path, change, message):
    target = tmp_path / "policy"
    export_policy(network, OBSERVATION, target, formats=["onnx"], onnx=CHOICES["external"])
    kept = read_bundle(target)
    change(target / "onnx" / "policy.onnx.data")
    with pytest.raises(BundleError, match=message):
        read_bundle(target)
    with pytest.raises(BundleError, match=message):
        load_policy(kept)  # read before the change


def test_one_robot_never_changes_anothers_action_in_int8(bundles):
    """Inputs are quantized row by row, so a wild row leaves its neighbour alone."""
    batch = load_policy(bundles["int8"]).session(batch_size=2, check_finite=False)
    alone = load_policy(bundles["int8"]).session(batch_size=1)
    x = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)
    expected = alone.step(x)
    for wild in (0.0, 1e6, np.nan):
        action = batch.step(np.concatenate([x, np.full((1, 8), wild, np.float32)]))
        np.testing.assert_array_equal(action[:1], expected)
        assert np.isnan(action[1]).all() == np.isnan(wild)


def test_more_constants_than_a_format_can_hold_are_one_clear_error(network, tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "MAX_CONSTANT_BYTES", 2**18)
    with pytest.raises(ExportError, match=r"GiB of weights .*no format can be written with more"):
        export_policy(network, OBSERVATION, tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 6}, "opset must be an integer from 7 to 18, got 6"),
        ({"opset": 99}, "opset must be an integer from 7 to 18, got 99"),
        ({"external_data": 1}, "external_data must be True or False, got 1"),
        ({"weights": "int4"}, "weights must be 'float32' or 'float16', got 'int4'"),
        ({"int8_min_weights": 0}, "int8_min_weights must be None or .*, got 0"),
        ({"int8_min_weights": 9, "opset": 10}, "int8 layers need opset 11 or newer, got opset 10"),
    ],
)
def test_options_that_do_not_exist_are_refused(types_unchecked, options, message):
    with pytest.raises(ExportError, match=message):
        OnnxOptions(**options)


def layer(weights, opset=18, **settings):
    """Return a model of one product with a constant matrix, and a bias if it is a Gemm."""
    width = weights.shape[0] if settings.get("transB") else weights.shape[1]
    bias = np.linspace(-1, 1, width, dtype=np.float32)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], **settings)
    depth = weights.shape[1] if settings.get("transB") else weights.shape[0]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    version = helper.make_opsetid("", opset)
    return helper.make_model(graph, opset_imports=[version], ir_version=8)


def run(model, x):
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("settings", [{}, {"transB": 1}])
@pytest.mark.parametrize("opset", [11, 18])
def test_an_int8_layer_is_the_product_of_what_was_rounded(opset, settings):
    generator = np.random.default_rng(1)
    weights = (generator.normal(size=(48, 40)) * np.logspace(-3, 2, 40)).astype(np.float32)
    weights[:, 5] = 0.0
    x = generator.normal(size=(7, 48)).astype(np.float32) * 30
    x[3] = 0.0
    model = layer(weights.T.copy() if settings else weights, opset, **settings)
    exact = run(model, x)
    assert quantize_layers(model, 100) == 1
    actual = run(model, x)
    scale, unit = np.abs(weights).max(0) / 127, np.abs(x).max(1, keepdims=True) / 127
    rounded = np.round(weights / np.where(scale > 0, scale, 1)) * scale
    bias = np.linspace(-1, 1, 40, dtype=np.float32)
    expected = np.round(x / np.where(unit > 0, unit, 1)) * unit @ rounded + bias
    size_of_row = np.abs(x).max(1, keepdims=True) * np.abs(weights).sum(0)
    assert (np.abs(actual - expected) <= 1e-2 * size_of_row / 48 + 1e-5).all()
    assert (np.abs(actual - exact) <= size_of_row / 100 + 1e-5).all()
    np.testing.assert_allclose(actual[3], bias, atol=1e-6)


def test_weights_that_float16_cannot_hold_stay_float32():
    generator = np.random.default_rng(1)
    for factor, count in ((1.0, 1), (1e6, 0), (1e-9, 0)):
        model = layer((generator.normal(size=(16, 16)) * factor).astype(np.float32))
        x = generator.normal(size=(3, 16)).astype(np.float32)
        exact = run(model, x)
        assert store_as_float16(model) == count
        np.testing.assert_allclose(run(model, x), exact, rtol=2e-2, atol=5e-3)
        stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        assert stored["b"] == TensorProto.FLOAT


def test_a_large_offset_survives_float16_weights(tmp_path):
    """A normalizer's mean is no weight of a layer and keeps all its digits."""
    network = make_mlp_actor_critic(8, 2, [64], [8], nnx.Rngs(3))
    for _, module in nnx.iter_modules(network):
        if hasattr(module, "update_statistics") and hasattr(module, "M2"):
            noise = np.random.default_rng(0).normal(size=(16, 64, 8)) * 1e-2
            module.update_statistics(jp.asarray(1e4 + noise, jp.float32))
    bundle = export_policy(
        network, OBSERVATION, tmp_path / "p", formats=["onnx"], onnx=CHOICES["float16"]
    )
    found = report(bundle, network)
    assert found.passed, found.summary
