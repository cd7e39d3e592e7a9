"""Finding a server, and saying why one cannot be had."""

import types
from pathlib import Path

import pytest

from serving import ServerError, TritonServer
from serving.fleet.installation import find_installation
from serving.fleet.processes import choose_ports, reason_in


def test_a_python_without_a_stub_is_named_with_those_that_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tritonserver" / "python_backend_stubs" / "3.8").mkdir(parents=True)
    package = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    with pytest.raises(ServerError, match=r"runs Python models with 3\.8 of Python, this is 3\."):
        find_installation()


def test_a_python_without_a_shared_library_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr("sys.base_prefix", str(tmp_path))
    with pytest.raises(ServerError, match="apt-get install libpython3"):
        find_installation()


def test_a_placeholder_of_the_index_is_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placeholder = tmp_path / "tritonserver"
    placeholder.write_text("#!/bin/sh\n")
    placeholder.chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_installation().binary == placeholder
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(ServerError, match="there is no Triton server here"):
        find_installation()


def test_a_server_that_is_named_has_to_be_a_program(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="is no program that can be run"):
        find_installation(tmp_path)


def test_a_program_that_is_no_server_is_one_error(repository: Path) -> None:
    with pytest.raises(ServerError, match="the server has ended with status 1"):
        TritonServer(repository, binary="/bin/false").start()


def test_an_empty_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="holds no model; write one with: nnx-ppo triton"):
        TritonServer(tmp_path)


def test_addresses_that_cannot_be_listened_at_are_refused() -> None:
    with pytest.raises(ServerError, match="port 70000: expected an integer from 0 to 65535"):
        choose_ports("127.0.0.1", (70000,))
    with pytest.raises(ServerError, match=r"192\.0\.2\.1:0 cannot be listened at"):
        choose_ports("192.0.2.1", (0,))
    ports = choose_ports("127.0.0.1", (0, 0, 0))
    assert len(set(ports)) == 3


def test_the_reason_is_what_kept_models_from_loading_if_that_is_it() -> None:
    lines = [
        'E1201 14:00:00.757941 1 server.cc:241] "CudaDriverHelper has not been initialized."',
        'I1201 14:00:00.8 1 model_lifecycle.cc:472] "loading: leaky:1"',
        "E1201 14:00:01.4 1 model_lifecycle.cc:642] \"failed to load 'leaky' version 1: Internal: "
        'ServingError: bad hash\\n\\nAt:\\n  <frozen importlib._bootstrap>(241): _call"',
        "error: creating server: Internal - failed to load all models",
    ]
    assert reason_in(lines) == (
        "failed to load 'leaky' version 1: Internal: ServingError: bad hash"
    )
    assert reason_in(lines[3:]) == "creating server: Internal - failed to load all models"
