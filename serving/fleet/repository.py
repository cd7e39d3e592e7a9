"""Writes a policy into a Triton model repository."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from serving import files
from serving.bundle import Bundle, read_bundle, to_path
from serving.errors import FleetError
from serving.fleet.implicit_state import write_implicit_state
from serving.fleet.model_config import CONFIG_FILE, SETTINGS_PARAMETER, python_config
from serving.fleet.settings import FleetSettings, check_model_name, model_name_of
from serving.partials import Partial
from serving.runtimes import check_runtime_name

VERSION = "1"

_MODEL = '''"""Steps the bundle beside this file. All it needs is in the package `serving`."""

from serving.fleet.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def write_model_repository(
    bundle: Bundle | str | Path,
    repository: str | Path,
    *,
    name: str | None = None,
    settings: FleetSettings | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a policy as one model of a repository, complete in itself.

    The model is written beside its place and renamed. Other models of the repository are left as
    they are.

    Args:
        bundle: the policy, or its directory.
        repository: the repository's directory, made if there is none.
        name: the model's; None for one made of the policy's.
        settings: how it is served.
        overwrite: replace a model of that name that an earlier call has written.

    Returns:
        The model's directory.

    Raises:
        FleetError: if the model exists or cannot be written, or Triton cannot serve the policy.
        BundleError: if the bundle cannot be read.
        RuntimeUnavailableError: if the runtime is unknown.
    """
    settings = settings or FleetSettings()
    checked = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
    name = model_name_of(checked.manifest.name) if name is None else check_model_name(name)
    root = Path(os.path.abspath(to_path(repository)))
    if (root / "manifest.json").exists():
        raise FleetError(f"{root}: is a bundle, not a model repository; choose another directory")
    target = root / name
    _check_target(target, overwrite)
    try:
        parents = files.make_parents(root)
        partial = Partial(target, directory=True)
    except OSError as error:
        raise FleetError(f"{target}: cannot be written: {error}") from error
    try:
        _write_model(checked, partial.path, name, settings)
        files.sync_tree(partial.path)
        files.move_directory(partial.path, target, replace=overwrite)
    except BaseException as error:
        partial.remove()
        files.remove_empty(parents)
        if isinstance(error, FileExistsError):
            raise FleetError(_exists(target)) from error
        if isinstance(error, OSError):
            raise FleetError(f"{target}: cannot be written: {error}") from error
        raise
    partial.close()
    return target


def models_in(repository: Path) -> list[str]:
    """Returns the names of a repository's models."""
    return sorted(file.parent.name for file in repository.glob(f"*/{CONFIG_FILE}"))


def initial_carry_json(bundle: Bundle) -> str:
    """Returns the carry of a fresh environment as JSON, each number at full precision."""
    values = {
        port.name: bundle.initial_carry[port.name].tolist() for port in bundle.manifest.carry_ports
    }
    return json.dumps(values)


def _write_model(bundle: Bundle, directory: Path, name: str, settings: FleetSettings) -> None:
    version = directory / VERSION
    version.mkdir()
    if settings.mode == "implicit_state":
        config = write_implicit_state(bundle, directory, version, name, settings)
    else:
        check_runtime_name(settings.runtime)
        if settings.runtime not in bundle.manifest.artefacts:
            raise FleetError(
                f"{bundle.path}: has no artefact for the runtime {settings.runtime!r}; it has "
                f"{sorted(bundle.manifest.artefacts)}"
            )
        carry = initial_carry_json(bundle) if settings.mode == "stateless" else ""
        config = python_config(name, bundle.manifest, settings, carry)
        (version / "model.py").write_text(_MODEL, encoding="utf-8")
        shutil.copytree(bundle.path, version / "bundle")
        # What was copied is what was checked.
        if read_bundle(version / "bundle").fingerprint != bundle.fingerprint:
            raise FleetError(f"{bundle.path}: was changed while it was copied; try again")
    (directory / CONFIG_FILE).write_text(config, encoding="utf-8")


def _check_target(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise FleetError(_exists(target))
    try:
        ours = SETTINGS_PARAMETER in (target / CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        ours = False
    if not ours or target.is_symlink():
        raise FleetError(
            f"{target}: exists and was not written by nnx-ppo triton, so it is not overwritten"
        )


def _exists(target: Path) -> str:
    return f"{target}: exists already; choose another --name, or --overwrite it"
