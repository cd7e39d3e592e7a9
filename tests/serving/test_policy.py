import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from serving import (
    BundleError,
    BundleWriter,
    RuntimeUnavailableError,
    ServingError,
    load_policy,
    read_bundle,
    tree,
)
from serving.manifest import CarryLeaf, CarryPort, NetworkCarry, Port


def test_a_policy_tells_what_the_bundle_says(bundle_path):
    policy = load_policy(bundle_path)
    assert (policy.name, policy.runtime_name) == ("leaky", "onnx")
    assert policy.control_rate_hz == 50.0 and policy.batch_size is None
    assert policy.metadata.joint_names == ["a", "b", "c"]
    assert policy.initial_carry()["carry.count"] == 5
    assert policy.initial_carry(2)["carry.hidden"].shape == (2, 3)
    assert repr(policy) == "Policy('leaky', runtime='onnx')"


def test_a_bundle_that_has_been_read_is_not_read_again(bundle_path):
    bundle = read_bundle(bundle_path)
    assert load_policy(bundle).bundle is bundle


def test_an_unknown_runtime_is_refused_listing_the_known_ones(bundle_path):
    known = r"\['c', 'litert', 'onnx', 'saved_model', 'saved_model_xla', 'stablehlo'\]"
    with pytest.raises(
        RuntimeUnavailableError, match=f"unknown runtime 'torch'; known are {known}"
    ):
        load_policy(bundle_path, runtime="torch")


def test_a_runtime_without_its_artefact_is_refused_listing_those_there(bundle_path):
    with pytest.raises(RuntimeUnavailableError, match=r"no artefact .*'stablehlo'.*\['onnx'\]"):
        load_policy(bundle_path, runtime="stablehlo")


@pytest.mark.parametrize(
    ("runtime", "package", "extra"),
    [
        ("onnx", "onnxruntime", "serving"),
        ("litert", "ai_edge_litert", "litert"),
        ("saved_model", "tensorflow", "saved-model"),
        ("saved_model_xla", "tensorflow", "saved-model"),
        ("stablehlo", "jax", "stablehlo"),
        ("stablehlo", "flatbuffers", "stablehlo"),
    ],
)
def test_a_runtime_that_is_not_installed_says_how_to_install_it(
    bundle_path, monkeypatch, runtime, package, extra
):
    bundle = read_bundle(bundle_path)
    artefacts = {runtime: bundle.manifest.artefacts["onnx"]}
    manifest = msgspec.structs.replace(bundle.manifest, artefacts=artefacts)
    bundle = dataclasses.replace(bundle, manifest=manifest)
    module = "saved_model" if runtime.startswith("saved_model") else runtime
    monkeypatch.delitem(sys.modules, f"serving.runtimes.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    # What another test imported from inside the package would still be found.
    monkeypatch.delitem(sys.modules, "ai_edge_litert.interpreter", raising=False)
    install = rf'pip install "nnx-ppo-deploy\[{extra}\]"'
    with pytest.raises(RuntimeUnavailableError, match=f"{runtime!r} needs .*{package}.*{install}"):
        load_policy(bundle, runtime=runtime)


def test_an_unknown_option_is_refused_listing_the_known_ones(bundle_path):
    with pytest.raises(RuntimeUnavailableError, match=r"no option 'device'; it has \['threads'\]"):
        load_policy(bundle_path, device="gpu")


@pytest.mark.parametrize("threads", [-5, 0, 10**12])
def test_a_number_of_threads_that_cannot_be_is_refused(bundle_path, threads):
    with pytest.raises(ServingError, match=f"threads is {threads}, expected an integer from 1"):
        load_policy(bundle_path, threads=threads)


def test_threads_do_not_change_the_result(bundle_path, leaky):
    observation = leaky.tree(leaky.observe(np.random.default_rng(0), 8))
    one = load_policy(bundle_path).session(batch_size=8).step(observation)
    two = load_policy(bundle_path, threads=2).session(batch_size=8).step(observation)
    assert np.array_equal(one["joints"], two["joints"])


def test_a_fixed_batch_takes_only_that_batch(leaky, tmp_path):
    policy = load_policy(leaky.write(tmp_path / "four", batch_size=4))
    assert policy.batch_size == 4
    action = policy.session(batch_size=4).step(
        leaky.tree(leaky.observe(np.random.default_rng(0), 4))
    )
    assert action["joints"].shape == (4, 3)
    for batch_size in (None, 1, 3):
        with pytest.raises(ServingError, match="exported for a batch of 4 only"):
            policy.session(batch_size)


def test_a_fixed_batch_of_one_also_serves_one_robot_without_a_batch_axis(leaky, tmp_path):
    policy = load_policy(leaky.write(tmp_path / "one", batch_size=1))
    observation = leaky.observe(np.random.default_rng(0), 1)
    alone = policy.session().step(leaky.tree(observation, row=0))
    batch = policy.session(batch_size=1).step(leaky.tree(observation))
    assert np.array_equal(alone["joints"], batch["joints"][0])


def refuse(leaky, path, message, **parts):
    """A bundle whose every hash is right, but whose artefact does not match its manifest."""
    with pytest.raises(BundleError, match=f"policy.onnx: .*{message}"):
        load_policy(leaky.write(path, **parts))


def renamed(model, old, new):
    for value in [*model.graph.input, *model.graph.output]:
        if value.name == old:
            value.name = new
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    return model.SerializeToString()


def test_an_artefact_with_other_input_names_is_refused(leaky, tmp_path):
    model = renamed(leaky.onnx_model(), "obs.goal", "goal_in")
    message = r"inputs do not match .*missing \['obs.goal'\], unexpected \['goal_in'\]"
    refuse(leaky, tmp_path / "b", message, model=model)


def test_an_artefact_with_other_output_names_is_refused(leaky, tmp_path):
    model = renamed(leaky.onnx_model(), "next_carry.total", "total_out")
    message = r"outputs do not match .*missing \['next_carry.total'\]"
    refuse(leaky, tmp_path / "b", message, model=model)


def test_an_artefact_of_another_batch_is_refused(leaky, tmp_path):
    fixed = leaky.onnx_model(4).SerializeToString()
    message = r"input 'carry.count' is int32\[4\], the manifest says int32\[any\]"
    refuse(leaky, tmp_path / "any", message, model=fixed)
    message = r"input 'carry.count' is int32\[4\], the manifest says int32\[3\]"
    refuse(leaky, tmp_path / "three", message, model=fixed, manifest=leaky.manifest(3))


def change_port(leaky, field, index, **change):
    manifest = leaky.manifest()
    ports = list(getattr(manifest, field))
    ports[index] = msgspec.structs.replace(ports[index], **change)
    return msgspec.structs.replace(manifest, **{field: ports})


def test_an_artefact_whose_output_has_another_width_is_refused(leaky, tmp_path):
    manifest = change_port(leaky, "extra_output_ports", 0, shape=[2])
    message = r"output 'value' is float32\[any, 1\], the manifest says float32\[any, 2\]"
    golden = leaky.golden()
    golden["value"] = np.repeat(golden["value"], 2, axis=-1)
    refuse(leaky, tmp_path / "b", message, manifest=manifest, golden=golden)


def test_an_artefact_whose_output_has_another_dtype_is_refused(leaky, tmp_path):
    manifest = change_port(leaky, "extra_output_ports", 0, dtype="float64")
    golden = {**leaky.golden(), "value": leaky.golden()["value"].astype(np.float64)}
    message = r"'value' is float32.* says float64"
    refuse(leaky, tmp_path / "b", message, manifest=manifest, golden=golden)


def test_an_artefact_that_is_no_model_is_refused(leaky, tmp_path):
    refuse(leaky, tmp_path / "text", "is no ONNX model", model=b"not a model")
    refuse(leaky, tmp_path / "empty", "onnxruntime cannot load it", model=b"")
    model = leaky.onnx_model()
    model.graph.node[0].op_type = "Teleport"
    data = model.SerializeToString()
    refuse(leaky, tmp_path / "unknown", "onnxruntime cannot load it: .*Teleport", model=data)


def test_an_artefact_that_hides_its_shapes_is_found_out_by_its_first_run(leaky, tmp_path):
    model = leaky.onnx_model()
    for output in model.graph.output:
        if output.name == "value":
            output.type.tensor_type.ClearField("shape")
    # How many columns this keeps is known only when it runs: two, where the manifest says one.
    keep = onnx.numpy_helper.from_array(np.array([True, False, True]), "keep")
    model.graph.initializer.append(keep)
    for node in list(model.graph.node):
        if list(node.output) == ["value"]:
            model.graph.node.remove(node)
    inputs = ["next_carry.hidden", "keep"]
    model.graph.node.append(onnx.helper.make_node("Compress", inputs, ["value"], axis=1))
    policy = load_policy(leaky.write(tmp_path / "b", model=model.SerializeToString()))
    with pytest.raises(BundleError, match="policy.onnx: does not run with 2 rows"):
        policy.session(batch_size=2)


@pytest.mark.parametrize("location", ["weights.bin", "../../outside.bin", "/etc/hostname"])
def test_a_model_with_weights_in_another_file_is_refused(leaky, tmp_path, location):
    model = leaky.onnx_model()
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "weights")
    for directory in (tmp_path, tmp_path / "b" / "onnx"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / Path(location).name).write_bytes(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "36"}.items():
        weights.external_data.add(key=key, value=value)
    message = "keeps weights in .* which the manifest does not list"
    refuse(leaky, tmp_path / "bundle", message, model=model.SerializeToString())


def test_a_policy_without_carry_acts(leaky, build_model, tmp_path):
    port, action = Port("obs", [], [2], "float32"), Port("action", [], [2], "float32")
    node = onnx.helper.make_node("Neg", ["obs"], ["action"])
    model = build_model([node], {}, [("obs", port)], [("action", action)], None)
    manifest = msgspec.structs.replace(
        leaky.manifest(),
        observation=tree.Leaf("obs", [2], "float32"),
        action=tree.Leaf("action", [2], "float32"),
        observation_ports=[port],
        carry_ports=[],
        action_ports=[action],
        extra_output_ports=[],
        network_carry=NetworkCarry(tree.Tuple([]), []),
    )
    observed = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    golden = {"obs": observed, "action": -observed, "reset": np.zeros((3, 2), bool)}
    with BundleWriter(tmp_path / "b") as writer:
        (writer.path / "onnx").mkdir()
        (writer.path / "onnx" / "policy.onnx").write_bytes(model.SerializeToString())
        writer.commit(manifest, {}, golden)
    session = load_policy(tmp_path / "b").session()
    assert session.step([1, 2]).tolist() == [-1, -2]
    session.reset()
    session.save_carry(tmp_path / "carry")
    session.restore_carry(tmp_path / "carry")
    assert session.carry == {} and session.extra_outputs == {}


@pytest.mark.parametrize(
    "dtype", ["bool", "float16", "float64", "int8", "int64", "uint8", "uint64"]
)
def test_ports_of_every_kind_of_number_are_bound(leaky, build_model, tmp_path, dtype):
    obs, action = Port("obs", [], [2], dtype), Port("action", [], [2], dtype)
    carry = CarryPort("carry", [], [2], dtype, "next_carry", "initial", "delay_buffer")
    nodes = [
        onnx.helper.make_node("Identity", ["carry"], ["action"]),
        onnx.helper.make_node("Identity", ["obs"], ["next_carry"]),
    ]
    model = build_model(
        nodes,
        {},
        [("carry", carry), ("obs", obs)],
        [("action", action), ("next_carry", carry)],
        None,
    )
    manifest = msgspec.structs.replace(
        leaky.manifest(),
        observation=tree.Leaf("obs", [2], dtype),
        action=tree.Leaf("action", [2], dtype),
        observation_ports=[obs],
        carry_ports=[carry],
        action_ports=[action],
        extra_output_ports=[],
        network_carry=NetworkCarry(
            tree.Leaf("carry", [2], dtype),
            [CarryLeaf(source="delay_buffer", port="carry", fill=None, shape=[2], dtype=dtype)],
        ),
    )
    ones = np.ones((2, 3, 2), dtype)
    acted = np.stack([np.zeros((3, 2), dtype), ones[0]])
    golden = {"obs": ones, "action": acted, "next_carry": ones, "reset": np.zeros((2, 3), bool)}
    with BundleWriter(tmp_path / "b") as writer:
        (writer.path / "onnx").mkdir()
        (writer.path / "onnx" / "policy.onnx").write_bytes(model.SerializeToString())
        writer.commit(manifest, {"carry": np.zeros(2, dtype)}, golden)
    session = load_policy(tmp_path / "b").session()
    first = np.array([1, 0], dtype)
    assert np.array_equal(session.step(first), np.zeros(2, dtype))
    assert np.array_equal(session.step(np.zeros(2, dtype)), first)
    assert session.step(first).dtype == dtype


def test_acting_imports_neither_jax_nor_tensorflow_and_importing_alone_no_runtime(bundle_path):
    """In a process of its own, for this one has imported everything."""
    script = f"""
        import sys

        import serving

        def loaded(*names):
            return [name for name in names if name in sys.modules]

        heavy = ("jax", "flax", "tensorflow", "nnx_ppo", "export", "optax", "jaxtyping")
        assert not loaded(*heavy, "onnxruntime", "onnx"), loaded(*heavy, "onnxruntime", "onnx")
        policy = serving.load_policy({str(bundle_path)!r})
        assert serving.self_test(policy).passed
        assert loaded("onnxruntime") and not loaded(*heavy), loaded(*heavy)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
