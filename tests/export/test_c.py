"""The C artefact: compiled strictly, checked by sanitizers, and compared with JAX."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import export_networks
import numpy as np
import onnx
import pytest
from c_policies import STRICT, compile_and_run, compile_and_run_alone, mixed
from onnx import TensorProto, helper

from export import ExportError, MissingExtraError, export_policy, verify_parity
from export.formats.c_names import comment, field_names, literal, quoted
from export.formats.c_network import generate
from export.formats.onnx_origins import modules_by_operation
from export.policy import ALL_FORMATS, FORMATS
from export.step import build_step
from nnx_ppo.cli import export as cli_export
from serving import load_policy, self_test
from serving.manifest import Port

SELF_TEST = """
#include "policy.h"
#include <stdio.h>

int main(void)
{
    double error;
    int failed = policy_self_test(&error);

    printf("%.9g\\n", error);
    return failed;
}
"""
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

OPTIONS = {
    "lstm": {"control_rate_hz": 50.0, "name": 'odd "name" */ ??/'},
    "population_graph": {"batch_size": 3},
    "two_arm": {
        "extra_outputs": ("distribution",),
        "reset_input": True,
        "metadata": {"units": {"action.arm_L": "rad", "action.arm_R": "rad"}},
    },
    "user_module": {"batch_size": 2, "formats": ["c", "onnx"]},
    "mixed": {},
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


# Those that take longest have little that the others have not.
SLOW = ("user_module", "population_graph")
PARAMS = [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in OPTIONS]


@pytest.fixture(scope="module", params=PARAMS)
def policy(request, tmp_path_factory):
    name = request.param
    network, observation = mixed() if name == "mixed" else export_networks.make(name)
    path = tmp_path_factory.mktemp("c") / name
    options = {"formats": ["c"], **OPTIONS[name]}
    return name, network, export_policy(network, observation, path, **options)


def test_the_c_acts_like_the_network(policy):
    _, network, bundle = policy
    report = verify_parity(bundle, network, steps=60, batch_sizes=(1, 3), write=False)
    assert report.passed, report.summary
    assert "c" in {c.runtime for c in report.comparisons}
    assert self_test(load_policy(bundle, runtime="c")).passed


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_it_compiles_strictly_and_replays_its_trajectory_under_sanitizers(
    policy, compiler, tmp_path
):
    if shutil.which(compiler) is None:
        compiler = "cc"
    options = (*SANITIZE, "-DPOLICY_SELF_TEST")
    done = compile_and_run(policy[2].path, SELF_TEST, tmp_path, *options, compiler=compiler)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0 < float(done.stdout) < 1e-5


CLOSE = """
#define POLICY_SELF_TEST
#include "policy.c"
#include <stdio.h>

static void show(double actual, double expected, double tolerance, double worst)
{
    const int close = close_to(actual, expected, tolerance, &worst);

    printf("%d %g\\n", close, worst);
}

int main(void)
{
    const double infinity = (double)INFINITY;

    show(1.5, 1.0, 0.3, 0.1);
    show(1.5, 1.0, 0.2, 0.1);
    show(1000001.0, 1000000.0, 0.0, 0.0);
    show(3.0, infinity, 1e-5, 0.1);
    show(-infinity, infinity, 1e-5, 0.1);
    show(infinity, infinity, 1e-5, 0.1);
    show((double)NAN, 1.0, 1e-5, 0.1);
    show(1.0, 1.5, 1e-5, infinity);
    return 0;
}
"""


def test_the_self_test_takes_nothing_for_close_that_is_not(policy, tmp_path):
    _, _, bundle = policy
    done = compile_and_run_alone(CLOSE, tmp_path, f"-I{bundle.path / 'c'}")
    assert done.stdout.splitlines() == [
        "1 0.5",
        "0 0.5",
        "0 1",
        "0 inf",
        "0 inf",
        "1 0.1",
        "0 inf",
        "0 inf",
    ]
    # Counters and flags have to be equal.
    floats = sum(
        np.dtype(port.dtype).kind == "f"
        for port in (
            *bundle.manifest.action_ports,
            *bundle.manifest.carry_ports,
            *bundle.manifest.extra_output_ports,
        )
    )
    text = (bundle.path / "c" / "policy.c").read_text()
    assert text.count(" POLICY_SELF_TEST_TOLERANCE,\n") == floats


def test_the_stack_that_is_stated_holds_what_operations_keep_too(policy):
    _, _, bundle = policy
    text = (bundle.path / "c" / "policy_network.h").read_text()
    header = (bundle.path / "c" / "policy.h").read_text()
    stated = int(re.findall(r"POLICY_STACK_BYTES (\d+)", header)[0])
    sums = [int(size) for size in re.findall(r"float acc\[(\d+)\];", text)]
    entry = text[text.index("static void policy_network(") :]
    held = [
        math.prod(int(n) for n in re.findall(r"\d+", sizes))
        for sizes in re.findall(r"^    float tmp\w+((?:\[\d+\])+);", entry, re.MULTILINE)
    ]
    assert sums and stated >= 4 * (sum(held) + max(sums))


def test_it_uses_no_heap_and_shares_no_memory_between_calls(policy, tmp_path):
    target = tmp_path / "policy.o"
    source = policy[2].path / "c" / "policy.c"
    subprocess.run(
        # At a fixed address, as on a controller: elsewhere a table of names is not constant.
        ["cc", *STRICT, "-O2", "-fno-pic", "-fno-pie", "-DPOLICY_SELF_TEST"]
        + ["-c", str(source), "-o", str(target)],
        check=True,
    )
    done = subprocess.run(["nm", str(target)], capture_output=True, text=True, check=True)
    symbols = [line.split()[-2:] for line in done.stdout.splitlines()]
    outside = {name for kind, name in symbols if kind == "U"}
    allowed = r"(tanh|exp|expm1|log|log1p|pow|sqrt|erf|fabs|floor|ceil|sin|cos|fmod)f?|mem\w+|_.*"
    assert [name for name in outside if not re.fullmatch(allowed, name)] == []
    # Data that can be written, by any section: there is none, initialized or not.
    assert [name for kind, name in symbols if kind in "dDbBcC"] == []


def test_one_program_holds_several_robots_whose_steps_interleave(policy, tmp_path):
    name, _, bundle = policy
    if name != "lstm":
        assert bundle.manifest.name == name
        return
    rng = np.random.default_rng(0)
    observations = rng.normal(0.0, 1.0, (20, 2, 8)).astype(np.float32)
    rows = ",\n".join(
        "{" + ", ".join(literal(value, "float32") for value in row) + "}"
        for row in observations.reshape(-1, 8)
    )
    main = f"""
#include "policy.h"
#include <stdio.h>
#include <string.h>

static const float seen[40][8] = {{{rows}}};

int main(void)
{{
    policy_carry carry[2];
    policy_observation observation;
    policy_action action;
    int step, robot;

    policy_init(&carry[0]);
    policy_init(&carry[1]);
    for (step = 0; step < 20; ++step) {{
        for (robot = 0; robot < 2; ++robot) {{
            memcpy(observation.obs, seen[2 * step + robot], sizeof observation.obs);
            if (step == 10 && robot == 1) {{
                policy_reset(&carry[robot]);
            }}
            policy_step(&carry[robot], &observation, &action);
            printf("%.9g %.9g\\n", (double)action.action[0], (double)action.action[1]);
        }}
    }}
    printf("%g %d\\n", POLICY_CONTROL_RATE_HZ, POLICY_SIZE_obs);
    return 0;
}}
"""
    done = compile_and_run(bundle.path, main, tmp_path, "-O2")
    *lines, last = done.stdout.splitlines()
    assert last == "50 8"
    found = np.asarray([line.split() for line in lines], np.float32).reshape(20, 2, 2)
    session = load_policy(bundle, runtime="c").session(batch_size=2)
    for step in range(20):
        if step == 10:
            session.reset(rows=[1])
        np.testing.assert_allclose(session.step(observations[step]), found[step], atol=1e-6)


def test_the_header_says_what_each_field_is_and_serves_cpp(policy, tmp_path):
    name, _, bundle = policy
    header = (bundle.path / "c" / "policy.h").read_text()
    for port in [*bundle.manifest.observation_ports, *bundle.manifest.action_ports]:
        assert f"/* {port.name}: {port.dtype}{port.shape}" in header
    if name == "two_arm":
        assert "/* action.arm_L: float32[2], rad */" in header
        assert "float obs_arm_L_proprioception[6];" in header
        assert "bool reset, policy_action *action, policy_extra *extra);" in header
    if name == "mixed":
        assert "bool obs_contact[2];" in header and "int32_t obs_mode;" in header
        assert "int32_t carry_0_age; /* carry.0.age: int32[], kept by policy_reset */" in header
    (tmp_path / "main.cpp").write_text(
        '#include "policy.h"\nint main() { policy_carry c; policy_init(&c); return 0; }\n'
    )
    subprocess.run(
        ["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
        + [f"-I{bundle.path / 'c'}", str(tmp_path / "main.cpp")],
        check=True,
    )


def test_nan_goes_through_as_in_the_other_runtimes(policy):
    name, _, bundle = policy
    session = load_policy(bundle, runtime="c").session(
        batch_size=bundle.manifest.batch_size, check_finite=False
    )
    if name == "mixed":
        observation = {
            "contact": np.zeros(2, np.bool_),
            "mode": np.int32(0),
            "position": np.array([0, np.nan, 1], np.float32),
        }
        assert np.isnan(session.step(observation)).all()
        assert np.isnan(session.carry["carry.0.level"]).tolist() == [False, True, False]
    elif name == "lstm":
        assert np.isnan(session.step(np.full(8, np.nan, np.float32))).all()


def test_the_example_of_the_docs_is_a_program(policy, tmp_path):
    name, _, bundle = policy
    if name != "lstm":
        assert (bundle.path / "c" / "policy.c").is_file()
        return
    page = (Path(__file__).parents[2] / "docs" / "c.md").read_text(encoding="utf-8")
    (main,) = re.findall(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    done = compile_and_run(bundle.path, main, tmp_path, "-O2")
    assert done.returncode == 0 and len(done.stdout.split()) == 100
    session = load_policy(bundle, runtime="c").session()
    expected = [session.step(np.zeros(8, np.float32))[0] for _ in range(100)]
    np.testing.assert_allclose(np.asarray(done.stdout.split(), float), expected, atol=1e-5)


def test_the_command_line_knows_the_format():
    assert cli_export.ALL_FORMATS == ALL_FORMATS and "c" in ALL_FORMATS
    assert cli_export.FORMATS == FORMATS and "c" not in FORMATS


def test_names_that_c_does_not_have_are_changed_and_kept_apart():
    ports = [
        Port(name, [], [1], "float32") for name in ("obs.a-b", "obs.a.b", "obs.a_b", "é", "7", "if")
    ]
    assert list(field_names(ports).values()) == [
        *("obs_a_b", "obs_a_b_2", "obs_a_b_3", "port", "port_7", "if_")
    ]
    assert comment("*/ ??/ \\ é") == "* / ? ?/ | ?"
    assert quoted('a"\\n?') == '"a\\042\\134n\\077"'


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "float32", "0x1.99999a0000000p-4f"),
        (np.nan, "float32", "NAN"),
        (-np.inf, "float64", "-INFINITY"),
        (-(2**31), "int32", "(-2147483647 - 1)"),
        (-(2**63), "int64", "(-9223372036854775807LL - 1)"),
        (2**64 - 1, "uint64", "18446744073709551615ULL"),
        (True, "bool", "true"),
    ],
)
def test_numbers_are_written_exactly(value, dtype, text):
    assert literal(np.asarray(value, dtype)[()], dtype) == text


def one_node(operation, **constants):
    """Return a model of one node from x to y, rows of two floats."""
    graph = helper.make_graph(
        [helper.make_node(operation, ["x", *constants], ["y"], domain="")],
        "policy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor(k, TensorProto.FLOAT, [], [v]) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert isinstance(model, onnx.ModelProto)
    return model


def test_an_operation_that_has_no_c_is_refused_by_name():
    with pytest.raises(ExportError, match=r"in C: .*is Unheard, used by the module layers.3;"):
        generate(one_node("Unheard"), lambda: {"Unheard": ["layers.3"]})


def test_a_limit_alone_is_a_program_too_and_keeps_nan(tmp_path):
    # Its headers are fewer than those of a whole network.
    code = generate(one_node("Clip", low=-1.0, high=0.5), dict).code
    (tmp_path / "network.h").write_text(code)
    main = """
    #include <stdio.h>
    #include "network.h"

    int main(void)
    {
        const float given[3][1][2] = {{{-3.0f, 7.0f}}, {{0.25f, NAN}}, {{INFINITY, -INFINITY}}};
        float limited[1][2];
        int row;

        for (row = 0; row < 3; ++row) {
            policy_network(given[row], limited);
            printf("%g %g\\n", limited[0][0], limited[0][1]);
        }
        return 0;
    }
    """
    done = compile_and_run_alone(main, tmp_path, f"-I{tmp_path}")
    assert done.stdout.split() == ["-1", "0.5", "0.25", "nan", "0.5", "-1"]


def test_the_module_of_an_operation_is_known():
    network, observation = export_networks.make("population_graph")
    step = dataclasses.replace(build_step(network, observation), batch_size=1)
    modules = modules_by_operation(step)
    assert "layers.1.action.layers.4" in modules["Tanh"]
    assert modules["Sigmoid"] == ["layers.1.action.layers.1.connections.2.transform.cell"]


def test_without_the_generator_the_extra_is_named(tmp_path, monkeypatch):
    network, observation = export_networks.make("mlp")
    monkeypatch.setitem(sys.modules, "emx_onnx_cgen", None)
    with pytest.raises(MissingExtraError, match=r'emx_onnx_cgen.*nnx-ppo-deploy\[c\]"'):
        export_policy(network, observation, tmp_path / "p", formats=["c"])
    assert not (tmp_path / "p").exists()


def test_a_port_of_half_precision_is_refused(tmp_path):
    network, _ = export_networks.make("mlp")
    with pytest.raises(ExportError, match="obs is float16, for which C99 has no type"):
        export_policy(network, np.zeros(8, np.float16), tmp_path / "p", formats=["c"])
