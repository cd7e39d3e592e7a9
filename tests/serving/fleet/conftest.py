"""One real server for the tests of a file, with the leaky policy in both modes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import FleetSettings, TritonServer, write_model_repository


@pytest.fixture(scope="module")
def repository(bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    write_model_repository(bundle_path, root, settings=FleetSettings(max_sequences=100))
    stateless = FleetSettings(mode="stateless")
    write_model_repository(bundle_path, root, name="free", settings=stateless)
    small = FleetSettings(max_sequences=2, idle_timeout_s=0.5)
    write_model_repository(bundle_path, root, name="small", settings=small)
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[TritonServer]:
    with TritonServer(repository, stop_timeout_s=1.0) as running:
        yield running
