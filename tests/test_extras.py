"""Each package works with its own extra: what the others bring is made unimportable."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Package -> modules that its extra does not install.
ABSENT = {
    "serving": [
        *["jax", "jaxlib", "flax", "optax", "tensorflow", "tf2onnx", "onnx", "matplotlib"],
        *["gymnasium", "mujoco", "tritonclient"],
    ],
    "nnx_ppo": [
        *["tensorflow", "keras", "tf2onnx", "onnx", "onnxruntime", "matplotlib", "beartype"],
        *["gymnasium", "mujoco"],
    ],
    "export": ["beartype", "hypothesis", "pytest", "emx_onnx_cgen"],
}

BLOCK = """
import importlib.abc, importlib, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in {modules!r}:
    importlib.import_module(name)
"""


# Imported when somebody asks for one of them, each with an extra of its own.
ON_REQUEST = {
    "serving.fleet.grpc_connection",
    "serving.fleet.triton_model",  # within a server, which brings the module that it needs
    "nnx_ppo.wrappers.gymnasium_view",
    "serving.runtimes.litert",
    "serving.runtimes.saved_model",
    "serving.runtimes.stablehlo",
}


def modules_of(package: str) -> list[str]:
    found = pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
    names = [package, *(info.name for info in found if not info.name.endswith("__main__"))]
    return [name for name in names if name not in ON_REQUEST]


@pytest.mark.parametrize("package", ABSENT)
def test_every_module_is_imported_without_the_other_extras(package: str) -> None:
    code = BLOCK.format(absent=set(ABSENT[package]), modules=modules_of(package))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
