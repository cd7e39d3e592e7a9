"""The exported C on a Cortex-M4F without an operating system, emulated by QEMU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import export_networks
import pytest
from c_policies import STRICT, mixed

from export import export_policy

HERE = Path(__file__).parent
COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
FLAGS = ("-O2", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")

pytestmark = pytest.mark.embedded


def run_on_board(bundle: Path, directory: Path) -> tuple[dict[str, int], int]:
    """Return the numbers that the program on the board prints, and its exit status."""
    for tool in (COMPILER, EMULATOR):
        assert shutil.which(tool), f"{tool} is not installed; run `make test-embedded`"
    program = directory / "policy.elf"
    sources = [str(bundle / "c" / "policy.c"), str(HERE / "main.c")]
    build = subprocess.run(
        [COMPILER, *STRICT, *FLAGS, "-DPOLICY_SELF_TEST", f"-I{bundle / 'c'}", *sources]
        + ["-nostartfiles", f"-T{HERE / 'mps2_an386.ld'}", "-o", str(program), "-lm"]
        + ["-Wl,--gc-sections", "--specs=nosys.specs"],
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stderr
    # QEMU's board has the processor with its floating-point unit.
    emulator = [EMULATOR, "-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none"]
    done = subprocess.run(
        [*emulator, "-semihosting-config", "enable=on,target=native", "-kernel", str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    said = dict(line.split() for line in (done.stdout + done.stderr).splitlines())
    return {name: int(value) for name, value in said.items()}, done.returncode


@pytest.mark.parametrize("name", ["lstm", "population_graph", "mixed"])
def test_the_golden_trajectory_is_replayed_on_the_board(name, tmp_path):
    network, observation = mixed() if name == "mixed" else export_networks.make(name)
    bundle = export_policy(network, observation, tmp_path / "policy", formats=["c"])
    said, status = run_on_board(bundle.path, tmp_path)
    assert status == 0, said
    assert said["error_1e-12"] < 1e7  # 1e-5
    stated = bundle.manifest.artefacts["c"].details["stack_bytes"]
    assert 0 < said["stack_bytes"] < int(stated) + 4096
    # One that is wrong must be found out, or all this would show nothing.
    network_file = bundle.path / "c" / "policy_network.h"
    text = network_file.read_text()
    network_file.write_text(
        text.replace("return policy_tanhf(a);", "return 0.99f * policy_tanhf(a);")
    )
    said, status = run_on_board(bundle.path, tmp_path)
    assert status == 1 and said["error_1e-12"] > 1e7
