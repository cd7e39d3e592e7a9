"""The model repository: its configuration as Triton parses it, its graph as onnxruntime runs it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from serving import FleetError, FleetSettings, load_policy, read_bundle, write_model_repository
from serving.fleet.model_config import quoted, triton_dims, triton_type
from serving.manifest import Port
from serving.manifest_json import parse_manifest


def parsed(model: Path) -> Any:
    text = (model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def tensors(entries: Any) -> list[tuple[str, str, list[int]]]:
    names = model_config_pb2.DataType
    return [(e.name, names.Name(e.data_type), list(e.dims)) for e in entries]


def test_the_python_model_has_the_ports_of_the_manifest_and_the_limits(
    bundle_path: Path, tmp_path: Path
) -> None:
    settings = FleetSettings(
        max_batch_size=16, max_sequences=100, idle_timeout_s=2.5, max_queue_delay_s=0.001
    )
    model = write_model_repository(bundle_path, tmp_path / "repository", settings=settings)
    config = parsed(model)
    assert (config.name, config.backend, config.max_batch_size) == ("leaky", "python", 16)
    assert tensors(config.input) == [
        ("obs.arm.contact", "TYPE_BOOL", [2]),
        ("obs.arm.position", "TYPE_FP32", [3]),
        ("obs.goal", "TYPE_FP32", [1]),
    ]
    assert tensors(config.output) == [
        ("action.gripper", "TYPE_FP32", [1]),
        ("action.joints", "TYPE_FP32", [3]),
        ("value", "TYPE_FP32", [1]),
    ]
    batching = config.sequence_batching
    assert batching.max_sequence_idle_microseconds == 2_500_000
    assert batching.oldest.max_candidate_sequences > 100
    assert batching.oldest.max_queue_delay_microseconds == 1000
    # Any kind of correlation ID: a control input would be of one type.
    assert len(batching.control_input) == 0
    assert [group.count for group in config.instance_group] == [1]
    manifest = config.parameters["nnx_ppo.manifest"].string_value
    assert parse_manifest(manifest.encode()) == read_bundle(bundle_path).manifest


def test_the_repository_is_complete_in_itself(bundle_path: Path, tmp_path: Path) -> None:
    model = write_model_repository(bundle_path, tmp_path / "repository", name="walker")
    copied = read_bundle(model / "1" / "bundle")
    assert copied.fingerprint == read_bundle(bundle_path).fingerprint
    source = (model / "1" / "model.py").read_text(encoding="utf-8")
    assert "from serving.fleet.triton_model import TritonPythonModel" in source
    assert str(bundle_path) not in (model / "config.pbtxt").read_text(encoding="utf-8") + source
    assert [path.name for path in (tmp_path / "repository").iterdir()] == ["walker"]


def test_the_stateless_model_takes_and_gives_the_carry(bundle_path: Path, tmp_path: Path) -> None:
    settings = FleetSettings(mode="stateless")
    config = parsed(write_model_repository(bundle_path, tmp_path / "r", settings=settings))
    assert config.HasField("dynamic_batching") and not config.HasField("sequence_batching")
    assert tensors(config.input)[3:] == [
        ("carry.count", "TYPE_INT32", [1]),
        ("carry.hidden", "TYPE_FP32", [3]),
        ("carry.total", "TYPE_FP32", [1]),
        ("start", "TYPE_BOOL", [1]),
    ]
    assert [name for name, _, _ in tensors(config.output)][3:] == [
        "next_carry.count",
        "next_carry.hidden",
        "next_carry.total",
    ]
    initial = json.loads(config.parameters["nnx_ppo.initial_carry"].string_value)
    assert initial["carry.count"] == 5


def test_the_onnxruntime_model_has_states_that_triton_can_keep(
    leaky: Any, bundle_path: Path, tmp_path: Path
) -> None:
    settings = FleetSettings(mode="implicit_state", max_sequences=30)
    model = write_model_repository(bundle_path, tmp_path / "r", settings=settings)
    config = parsed(model)
    assert config.backend == "onnxruntime"
    assert config.sequence_batching.oldest.max_candidate_sequences == 30
    # A scalar's axis exists outside the graph only.
    goal = config.input[2]
    assert (goal.name, list(goal.dims), list(goal.reshape.shape)) == ("obs.goal", [1], [])
    assert goal.HasField("reshape") and not config.input[0].HasField("reshape")
    session = onnxruntime.InferenceSession(model / "1" / "model.onnx")
    in_graph = {port.name: port.shape[1:] for port in session.get_inputs()}
    for state in config.sequence_batching.state:
        (initial,) = state.initial_state
        assert len(state.dims) >= 1 and list(initial.dims) == list(state.dims)
        assert in_graph[state.input_name] == list(state.dims)
        assert initial.data_type == state.data_type
        assert (model / "initial_state" / initial.data_file).is_file()
    fed = {entry.name for entry in config.input}
    fed |= {state.input_name for state in config.sequence_batching.state}
    assert fed == set(in_graph)
    run_as_triton_would(session, model, config, leaky, load_policy(bundle_path))


def run_as_triton_would(
    session: onnxruntime.InferenceSession, model: Path, config: Any, leaky: Any, policy: Any
) -> None:
    """Keeps the states of two sequences in NumPy as the server would, and compares the actions."""
    dtypes = {"TYPE_FP32": np.float32, "TYPE_INT32": np.int32}
    states = {}
    for state in config.sequence_batching.state:
        (initial,) = state.initial_state
        dtype = dtypes[model_config_pb2.DataType.Name(initial.data_type)]
        data = (model / "initial_state" / initial.data_file).read_bytes()
        row = np.frombuffer(data, dtype).reshape(1, *initial.dims)
        states[state.input_name] = np.repeat(row, 2, 0)
    local = policy.session(2)
    rng = np.random.default_rng(8)
    outputs = [port.name for port in session.get_outputs()]
    for _ in range(20):
        seen = leaky.observe(rng, 2)
        given = dict(zip(outputs, session.run(outputs, {**seen, **states}), strict=True))
        expected = local.step(leaky.tree(seen))
        np.testing.assert_allclose(given["action.joints"], expected["joints"], atol=1e-6)
        np.testing.assert_allclose(given["action.gripper"], expected["gripper"], atol=1e-6)
        for state in config.sequence_batching.state:
            states[state.input_name] = given[state.output_name]


def test_a_fixed_batch_is_refused_where_triton_chooses_it(leaky: Any, tmp_path: Path) -> None:
    fixed = leaky.write(tmp_path / "fixed", batch_size=4)
    with pytest.raises(FleetError, match="batch of 4 only"):
        write_model_repository(fixed, tmp_path / "r", settings=FleetSettings(mode="implicit_state"))
    assert not (tmp_path / "r").exists()
    config = parsed(write_model_repository(fixed, tmp_path / "r"))
    assert config.max_batch_size == 4


def test_nothing_is_overwritten_without_being_asked(bundle_path: Path, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    model = write_model_repository(bundle_path, root)
    with pytest.raises(FleetError, match="exists already"):
        write_model_repository(bundle_path, root)
    settings = FleetSettings(max_batch_size=3)
    write_model_repository(bundle_path, root, settings=settings, overwrite=True)
    assert parsed(model).max_batch_size == 3
    foreign = root / "other"
    foreign.mkdir()
    (foreign / "config.pbtxt").write_text('backend: "python"')
    with pytest.raises(FleetError, match="was not written by nnx-ppo triton"):
        write_model_repository(bundle_path, root, name="other", overwrite=True)
    with pytest.raises(FleetError, match="is a bundle, not a model repository"):
        write_model_repository(bundle_path, bundle_path)
    assert sorted(path.name for path in root.iterdir()) == ["leaky", "other"]


def test_what_triton_cannot_take_is_refused_by_name() -> None:
    with pytest.raises(FleetError, match=r"obs.empty has the shape \[3, 0\]"):
        triton_dims(Port("obs.empty", [], [3, 0], "float32"))
    with pytest.raises(FleetError, match="obs: Triton has no type for bfloat16"):
        triton_type(Port("obs", [], [1], "bfloat16"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "direct"),
        ("max_batch_size", 0),
        ("max_sequences", 1.5),
        ("idle_timeout_s", float("nan")),
        ("max_queue_delay_s", -1.0),
        ("threads", True),
    ],
)
def test_settings_out_of_range_are_named(field: str, value: Any, types_unchecked: None) -> None:
    with pytest.raises(FleetError, match=field):
        FleetSettings(**{field: value})


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "x" * 200, "a b"])
def test_names_that_are_no_directory_are_refused(
    bundle_path: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(FleetError, match="is no name for a model"):
        write_model_repository(bundle_path, tmp_path / "r", name=name)


def test_text_is_quoted_so_that_protobuf_reads_it_back() -> None:
    text = 'a "quoted"\\ line\n\twith a bell \a, ümlauts and 漢字'
    config = model_config_pb2.ModelConfig()
    text_format.Parse(f"name: {quoted(text)}", config)
    assert config.name == text
