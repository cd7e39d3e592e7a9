"""The same network gives the same bytes, in any process and at any time."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from export.formats.onnx_canonical import make_canonical

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys

import export_networks
import jax
from flax import nnx
from lowered import FunctionPolicy

from export import OnnxOptions, export_policy

OPTIONS = {
    "half": OnnxOptions(weights="float16", external_data=True),
    "int8": OnnxOptions(int8_min_weights=64),
}

def looped(x):
    return jax.lax.fori_loop(0, x.astype(int).sum() % 3, lambda _, y: jax.numpy.tanh(y), x)

target, *names = sys.argv[1:]
for index, name in enumerate(names):
    if name == "loop":
        network, observation = FunctionPolicy(looped), jax.numpy.zeros(3)
    else:
        network, observation = export_networks.make("mlp" if name in OPTIONS else name)
    chosen = {"onnx": OPTIONS[name], "formats": ["onnx"]} if name in OPTIONS else {}
    export_policy(network, observation, f"{target}/{index}_{name}", name="policy", **chosen)
"""


def start(target: Path, hash_seed: str, names: list[str]) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")]),
    }
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(target), *names]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def contents(bundle: Path) -> dict[str, bytes]:
    files = [path for path in bundle.rglob("*") if path.is_file()]
    return {str(path.relative_to(bundle)): path.read_bytes() for path in files}


def test_two_processes_with_other_hash_seeds_write_the_same_files(tmp_path):
    """The second process exports others before, and the graph twice: no counter shows."""
    first = start(tmp_path / "a", "1", ["population_graph", "loop", "half", "int8"])
    others = ["int8", "half", "loop", "population_graph", "population_graph"]
    second = start(tmp_path / "b", "2", others)
    for process in (first, second):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    pairs = [
        ("a/0_population_graph", "b/3_population_graph"),
        ("a/0_population_graph", "b/4_population_graph"),
        ("a/1_loop", "b/2_loop"),
        ("a/2_half", "b/1_half"),
        ("a/3_int8", "b/0_int8"),
    ]
    for one, other in pairs:
        expected, actual = contents(tmp_path / one), contents(tmp_path / other)
        assert list(expected) and set(expected) == set(actual)
        assert "onnx/policy.onnx" in expected
        assert ("saved_model/saved_model.pb" in expected) == one.endswith(("graph", "loop"))
        assert any(name.endswith(".data") for name in expected) == (one.endswith("half"))
        # Nor do they say where on the machine that wrote them the sources lie.
        for place in (str(ROOT), sysconfig.get_paths()["purelib"]):
            assert not [name for name, data in expected.items() if place.encode() in data]
        differing = [name for name, data in expected.items() if actual[name] != data]
        assert differing == [], f"{one} and {other}"


def test_order_and_names_of_an_onnx_model_follow_from_its_graph():
    """Two models that differ in names, order and doubled constants only become one."""

    def model(names, order, doubled):
        a, b, c, d = names
        constants = [np.float32([2.0]), np.float32([2.0 if doubled else 3.0])]
        nodes = [
            helper.make_node("Mul", ["x", a], [c], name=c),
            helper.make_node("Add", ["x", b], [d], name=d),
            helper.make_node("Sub", [c, d], ["y"]),
        ]
        graph = helper.make_graph(
            [nodes[index] for index in order],
            "policy",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
            [
                helper.make_tensor(name, TensorProto.FLOAT, [1], value.tobytes(), raw=True)
                for name, value in zip((a, b), constants, strict=True)
            ],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        make_canonical(made)
        return made

    one = model(("k__7", "k__8", "p", "Constant_0"), [0, 1, 2], doubled=False)
    other = model(("Mul_0", "Add_0", "constant_1", "q"), [1, 0, 2], doubled=False)
    assert one.SerializeToString() == other.SerializeToString()
    onnx.checker.check_model(one, full_check=True)
    assert [node.output[0] for node in one.graph.node] == ["Mul_0", "Add_0", "y"]
    x = np.float32([[5.0], [-1.0]])
    for made, constant in ((one, 3.0), (model(("a", "b", "c", "d"), [0, 1, 2], True), 2.0)):
        session = onnxruntime.InferenceSession(made.SerializeToString())
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x * 2.0 - (x + constant))
        assert len(made.graph.initializer) == (2 if constant == 3.0 else 1)
