"""The same policy through every runtime; the artefacts are made with plain JAX and TensorFlow."""

import threading

import jax
import jax.numpy as jnp
import leaky_c
import msgspec
import numpy as np
import pytest
import tensorflow as tf
from jax import export as jax_export

from serving import BundleError, BundleWriter, StepError, load_policy, self_test
from serving.manifest import Artefact

RUNTIMES = ["onnx", "c", "saved_model", "saved_model_xla", "stablehlo"]
WEIGHTS = np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.6], [-0.1, 0.2, 0.7]], np.float32)


def jax_step(count, hidden, total, contact, position, goal):
    touch = contact.astype(jnp.float32).sum(1, keepdims=True)
    hidden = 0.9 * hidden + position @ WEIGHTS + touch
    total = total + goal[:, None]
    count = count + 1
    gripper = total[:, 0] + count.astype(jnp.float32)
    return gripper, jnp.tanh(hidden), count, hidden, total, hidden.sum(1, keepdims=True)


def stablehlo(manifest, rows: int | str = "b", platforms=("cpu",), step=jax_step) -> bytes:
    (size,) = jax_export.symbolic_shape(rows) if isinstance(rows, str) else (rows,)
    inputs = [
        jax.ShapeDtypeStruct((size, *port.shape), port.dtype)
        for port in [*manifest.carry_ports, *manifest.observation_ports]
    ]
    exported = jax_export.export(jax.jit(step), platforms=list(platforms))(*inputs)
    return bytes(exported.serialize())


def save_tensorflow(manifest, directory, signature="serving_default"):
    """A SavedModel of the policy, as a plain `tf.Module`."""
    ports = [*manifest.carry_ports, *manifest.observation_ports]
    specs = [tf.TensorSpec([None, *p.shape], p.dtype, name=p.name) for p in ports]

    def step(count, hidden, total, contact, position, goal):
        touch = tf.reduce_sum(tf.cast(contact, tf.float32), 1, keepdims=True)
        hidden = 0.9 * hidden + position @ WEIGHTS + touch
        total = total + goal[:, None]
        count = count + 1
        return {
            "action.gripper": total[:, 0] + tf.cast(count, tf.float32),
            "action.joints": tf.tanh(hidden),
            "next_carry.count": count,
            "next_carry.hidden": hidden,
            "next_carry.total": total,
            "value": tf.reduce_sum(hidden, 1, keepdims=True),
        }

    module = tf.Module()
    function = tf.function(step, input_signature=specs)
    tf.saved_model.save(module, str(directory), signatures={signature: function})


@pytest.fixture(scope="module")
def every_bundle(leaky, tmp_path_factory):
    artefacts = {
        "onnx": Artefact(format="onnx", entry="onnx/policy.onnx", opset=18),
        "c": leaky_c.ARTEFACT,
        "saved_model": Artefact(format="saved_model", flavour="portable", entry="saved_model"),
        "saved_model_xla": Artefact(format="saved_model", flavour="xla", entry="saved_model_xla"),
        "stablehlo": Artefact(format="stablehlo", entry="stablehlo/policy.bin"),
    }
    manifest = msgspec.structs.replace(leaky.manifest(), artefacts=artefacts)
    with BundleWriter(tmp_path_factory.mktemp("bundles") / "every") as writer:
        (writer.path / "onnx").mkdir()
        (writer.path / "onnx" / "policy.onnx").write_bytes(leaky.onnx_model().SerializeToString())
        (writer.path / "stablehlo").mkdir()
        (writer.path / "stablehlo" / "policy.bin").write_bytes(stablehlo(manifest))
        leaky_c.write(writer.path)
        save_tensorflow(manifest, writer.path / "saved_model")
        save_tensorflow(manifest, writer.path / "saved_model_xla")
        carry = {name: value[0] for name, value in leaky.initial_carry(1).items()}
        return writer.commit(manifest, carry, leaky.golden())


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=RUNTIMES)
def policy(every_bundle, request):
    return load_policy(every_bundle, runtime=request.param)


def test_each_runtime_replays_the_golden_trajectory(policy):
    report = self_test(policy)
    assert report.passed, report.to_json()
    assert report.max_abs_error == (2e-6 if policy.runtime_name == "stablehlo" else 1e-5)
    assert max(port.max_abs_error for port in report.ports) < 1e-5


def test_one_artefact_serves_one_robot_and_any_number(policy, leaky):
    rng = np.random.default_rng(1)
    for rows in (1, 2, 64):
        observation = leaky.observe(rng, rows)
        expected = leaky.step(leaky.initial_carry(rows), observation)
        action = policy.session(batch_size=rows).step(leaky.tree(observation))
        np.testing.assert_allclose(action["joints"], expected["action.joints"], 1e-5, 1e-5)
        alone = policy.session().step(leaky.tree(observation, row=rows - 1))
        np.testing.assert_allclose(alone["joints"], expected["action.joints"][-1], 1e-5, 1e-5)


def test_a_carry_moves_from_one_runtime_to_another(policy, every_bundle, leaky, tmp_path):
    session, other = policy.session(batch_size=2), load_policy(every_bundle).session(batch_size=2)
    rng = np.random.default_rng(2)
    for _ in range(5):
        session.step(leaky.tree(leaky.observe(rng, 2)))
    session.save_carry(tmp_path / "carry")
    other.restore_carry(tmp_path / "carry")
    observation = leaky.tree(leaky.observe(rng, 2))
    joints = session.step(observation)["joints"]
    np.testing.assert_allclose(other.step(observation)["joints"], joints, 1e-5, 1e-5)


def test_actions_are_not_changed_by_the_steps_that_follow(policy, leaky):
    session = policy.session(batch_size=2)
    rng = np.random.default_rng(3)
    first = session.step(leaky.tree(leaky.observe(rng, 2)))["joints"]
    carry = session.carry["carry.hidden"]
    kept = first.copy(), carry.copy()
    for _ in range(3):
        session.step(leaky.tree(leaky.observe(rng, 2)))
    assert np.array_equal(first, kept[0]) and np.array_equal(carry, kept[1])


def test_sessions_of_each_runtime_run_on_threads_of_their_own(policy, leaky):
    def act(seed):
        session = policy.session(batch_size=2)
        rng = np.random.default_rng(seed)
        for _ in range(30):
            joints = session.step(leaky.tree(leaky.observe(rng, 2)))["joints"]
        results[seed] = joints

    results: dict[int, np.ndarray] = {}
    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = dict(results)
    for seed in range(3):
        act(seed)
        np.testing.assert_array_equal(results[seed], together[seed])


def test_a_failing_runtime_leaves_the_carry(policy, leaky, monkeypatch):
    session = policy.session()
    observation = leaky.tree(leaky.observe(np.random.default_rng(4), 1), row=0)
    session.step(observation)
    before = {name: value.tobytes() for name, value in session.carry.items()}

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    attribute = "run" if policy.runtime_name in ("onnx", "c") else "_function"
    monkeypatch.setattr(session._step, attribute, fail)
    with pytest.raises(StepError, match="step 1: out of memory"):
        session.step(observation)
    assert {name: value.tobytes() for name, value in session.carry.items()} == before


def one_artefact(leaky, path, key, artefact, write, manifest=None):
    manifest = msgspec.structs.replace(manifest or leaky.manifest(), artefacts={key: artefact})
    with BundleWriter(path) as writer:
        write(writer.path)
        carry = {name: value[0] for name, value in leaky.initial_carry(1).items()}
        return writer.commit(manifest, carry, leaky.golden())


def stablehlo_bundle(leaky, path, data, manifest=None):
    def write(root):
        (root / "stablehlo").mkdir()
        (root / "stablehlo" / "policy.bin").write_bytes(data)

    artefact = Artefact(format="stablehlo", entry="stablehlo/policy.bin")
    return one_artefact(leaky, path, "stablehlo", artefact, write, manifest)


def test_a_stablehlo_file_that_is_none_is_refused(leaky, tmp_path):
    bundle = stablehlo_bundle(leaky, tmp_path / "b", b"\x08\x00\x00\x00 no artefact")
    with pytest.raises(BundleError, match=r"policy.bin: JAX .* cannot read it: .*\(0.10.2\)"):
        load_policy(bundle, runtime="stablehlo")


def test_a_stablehlo_file_of_another_batch_is_refused(leaky, tmp_path):
    bundle = stablehlo_bundle(leaky, tmp_path / "b", stablehlo(leaky.manifest(), rows=4))
    with pytest.raises(BundleError, match=r"policy.bin: input 'carry.count' is int32\[4\]"):
        load_policy(bundle, runtime="stablehlo")


def test_a_stablehlo_file_for_another_device_is_refused(leaky, tmp_path):
    data = stablehlo(leaky.manifest(), platforms=("cuda",))
    bundle = stablehlo_bundle(leaky, tmp_path / "b", data)
    with pytest.raises(BundleError, match=r"is made for \['cuda'\], not for the CPU"):
        load_policy(bundle, runtime="stablehlo")


def test_a_stablehlo_file_with_an_output_too_few_is_refused(leaky, tmp_path):
    data = stablehlo(leaky.manifest(), step=lambda *inputs: jax_step(*inputs)[:-1])
    bundle = stablehlo_bundle(leaky, tmp_path / "b", data)
    with pytest.raises(BundleError, match="has 5 outputs, the manifest says 6"):
        load_policy(bundle, runtime="stablehlo")


def saved_model_bundle(leaky, path, write):
    artefact = Artefact(format="saved_model", flavour="portable", entry="saved_model")
    return one_artefact(leaky, path, "saved_model", artefact, write)


def test_a_saved_model_without_the_signature_is_refused(leaky, tmp_path):
    bundle = saved_model_bundle(
        leaky,
        tmp_path / "b",
        lambda root: save_tensorflow(leaky.manifest(), root / "saved_model", signature="other"),
    )
    with pytest.raises(BundleError, match="saved_model: has no signature 'serving_default'"):
        load_policy(bundle, runtime="saved_model")


def test_a_saved_model_that_is_none_is_refused(leaky, tmp_path):
    def write(root):
        (root / "saved_model").mkdir()
        (root / "saved_model" / "saved_model.pb").write_bytes(b"\xff\xff not a protocol buffer")

    bundle = saved_model_bundle(leaky, tmp_path / "b", write)
    with pytest.raises(BundleError, match="saved_model: TensorFlow cannot load it"):
        load_policy(bundle, runtime="saved_model")
