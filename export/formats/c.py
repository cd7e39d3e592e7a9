"""The C artefact: the step of one robot as plain C99 that a microcontroller can run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from export.formats.c_header import header, ports_of
from export.formats.c_names import c_type
from export.formats.c_network import generate, generator_version
from export.formats.c_source import golden_source, source
from export.formats.onnx import convert
from export.formats.onnx_origins import modules_by_operation
from export.half_dtypes import NOTE, half_details
from export.step import Step
from serving.manifest import Artefact, Manifest

ENTRY = "c/policy.c"


def write_c(
    step: Step, directory: Path, manifest: Manifest, golden: Mapping[str, np.ndarray]
) -> Artefact:
    """Write the artefact below `directory` and return its manifest entry.

    Args:
        step: What to write, for one row: its batch size must be 1.
        directory: The bundle under construction.
        manifest: Ports, control rate and metadata.
        golden: The recorded trajectory.

    Raises:
        UnsupportedOperationError: An operation has no rule.
        ExportError: There is no C for an operation of the network or the type of a port.
    """
    for ports in ports_of(manifest).values():
        for port in ports:
            c_type(port)
    generated = generate(convert(step), lambda: modules_by_operation(step))
    target = directory / ENTRY
    target.parent.mkdir(parents=True)
    texts = {
        "policy.h": header(manifest, generated.stack_bytes),
        "policy.c": source(manifest, step.initial_carry),
        "policy_network.h": generated.code,
        "policy_golden.h": golden_source(manifest, golden),
    }
    for name, text in texts.items():
        (target.parent / name).write_text(text, encoding="ascii")
    return Artefact(
        format="c",
        entry=ENTRY,
        details={
            "emx_onnx_cgen_version": generator_version(),
            "stack_bytes": generated.stack_bytes,
            **half_details(step.portable, NOTE),
        },
    )
