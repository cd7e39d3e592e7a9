"""The text of `policy.c` and `policy_golden.h`: the functions around the generated network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from export.formats.c_header import ports_of, step_parameters
from export.formats.c_names import c_type, field_names, initializer, quoted
from export.formats.c_network import FUNCTION
from serving.bundle import RESET
from serving.manifest import Manifest, Port

TOLERANCE = 1e-5
GOLDEN_VALUES = 1 << 16
"""Most values in the recorded trajectory, for the flash of a small controller."""


def source(manifest: Manifest, initial_carry: Mapping[str, np.ndarray]) -> str:
    """Return the whole of `policy.c`."""
    parts = [
        '#include "policy.h"\n\n#include <string.h>\n\n#include "policy_network.h"\n',
        _port_table(manifest),
        _initial(manifest, initial_carry),
        _init_and_reset(manifest),
        _step(manifest),
        _self_test(manifest),
    ]
    return "\n".join(parts)


def _port_table(manifest: Manifest) -> str:
    rows: list[tuple[str, str, Port]] = []
    rows += [(port.name, "carry", port) for port in manifest.carry_ports]
    rows += [(port.name, "observation", port) for port in manifest.observation_ports]
    if manifest.reset_port is not None:
        rows.append((manifest.reset_port.name, "reset", manifest.reset_port))
    rows += [(port.name, "action", port) for port in manifest.action_ports]
    rows += [(port.next_name, "next carry", port) for port in manifest.carry_ports]
    rows += [(port.name, "extra output", port) for port in manifest.extra_output_ports]
    entries = ",\n".join(
        f"    {{{quoted(name)}, {quoted(role)}, {quoted(port.dtype)}, "
        f"{quoted(','.join(str(n) for n in port.shape))}}}"
        for name, role, port in rows
    )
    return (
        f"const policy_port policy_ports[] = {{\n{entries}\n}};\n"
        f"const size_t policy_port_count = {len(rows)};\n"
    )


def _initial(manifest: Manifest, initial_carry: Mapping[str, np.ndarray]) -> str:
    values = [initializer(initial_carry[p.name], p.dtype) for p in manifest.carry_ports] or ["0"]
    return f"static const policy_carry initial_carry = {{\n{_joined(values)}\n}};\n"


def _init_and_reset(manifest: Manifest) -> str:
    names = field_names(manifest.carry_ports)
    kept = [port for port in manifest.carry_ports if port.reset == "keep"]
    lines = [
        f"    memcpy(&fresh.{names[port.name]}, &carry->{names[port.name]}, "
        f"sizeof fresh.{names[port.name]});"
        for port in kept
    ]
    keep = "\n".join(lines) + "\n" if lines else ""
    return f"""\
void policy_init(policy_carry *carry)
{{
    *carry = initial_carry;
}}

void policy_reset(policy_carry *carry)
{{
    policy_carry fresh = initial_carry;
{keep}    *carry = fresh;
}}
"""


def _step(manifest: Manifest) -> str:
    names = {struct: field_names(ports) for struct, ports in ports_of(manifest).items()}

    ports_by_struct = ports_of(manifest)

    def pointers(struct: str, prefix: str, *, const: bool = False) -> list[str]:
        return [
            f"{_const_cast(port) if const else ''}&{prefix}{names[struct][port.name]}"
            for port in ports_by_struct[struct]
        ]

    arguments = [
        *pointers("carry", "carry->", const=True),
        *pointers("observation", "observation->"),
        *(["&reset"] if manifest.reset_port is not None else []),
        *pointers("action", "action->"),
        *pointers("carry", "next."),
        *pointers("extra", "extra->"),
    ]
    has_extra, has_carry = bool(names["extra"]), bool(names["carry"])
    lines = ["    policy_carry next;"] if has_carry else []
    lines += ["    policy_extra unwanted;"] if has_extra else []
    lines += [""] if lines else []
    lines += (
        ["    if (extra == NULL) {", "        extra = &unwanted;", "    }"] if has_extra else []
    )
    lines += ["    (void)carry;"] if not has_carry else []
    lines += ["    (void)observation;"] if not names["observation"] else []
    lines.append(f"    {FUNCTION}(\n        " + ",\n        ".join(arguments) + ");")
    # Copied and not written in place: the network reads the old carry to its end.
    lines += ["    *carry = next;"] if has_carry else []
    return f"void policy_step({step_parameters(manifest)})\n{{\n" + "\n".join(lines) + "\n}\n"


def _const_cast(port: Port) -> str:
    """Return the cast that C99 wants before an array of values that are not const themselves."""
    sizes = "".join(f"[{size}]" for size in port.shape)
    return f"(const {c_type(port)} (*){sizes})" if sizes else ""


def _self_test(manifest: Manifest) -> str:
    compared = ""
    for struct, variable in (("action", "action"), ("carry", "carry"), ("extra", "extra")):
        ports = ports_of(manifest)[struct]
        for port in ports:
            name = field_names(ports)[port.name]
            kind = c_type(port)
            is_float = np.dtype(port.dtype).kind == "f"
            tolerance = "POLICY_SELF_TEST_TOLERANCE" if is_float else "0.0"
            compared += (
                f"            for (index = 0; index < {math.prod(port.shape)}; ++index) {{\n"
                f"                ok &= close_to(\n"
                f"                    (double)((const {kind} *)&{variable}.{name})[index],\n"
                f"                    (double)((const {kind} *)&golden[row][step].{struct}.{name})"
                "[index],\n"
                f"                    {tolerance},\n"
                "                    &worst);\n"
                "            }\n"
            )
    given = ["&carry", "&golden[row][step].observation"]
    given += ["false"] if manifest.reset_port is not None else []
    given += ["&action"]
    given += ["&extra"] if manifest.extra_output_ports else []
    extra = "    policy_extra extra;\n" if manifest.extra_output_ports else ""
    return f"""\
#ifdef POLICY_SELF_TEST
#ifndef POLICY_SELF_TEST_TOLERANCE
#define POLICY_SELF_TEST_TOLERANCE {TOLERANCE!r}
#endif

#include "policy_golden.h"

static int close_to(double actual, double expected, double tolerance, double *worst)
{{
    double error = fabs(actual - expected);

    if (actual == expected || (isnan(actual) && isnan(expected))) {{
        return 1;
    }}
    /* Of what is not finite, only the same is close. */
    if (!isfinite(actual) || !isfinite(expected)) {{
        error = (double)INFINITY;
    }}
    if (error > *worst) {{
        *worst = error;
    }}
    return isfinite(error) && error <= tolerance * (1.0 + fabs(expected));
}}

int policy_self_test(double *max_error)
{{
    policy_carry carry;
    policy_action action;
{extra}    double worst = 0.0;
    int ok = 1;
    size_t row, step, index;

    for (row = 0; row < GOLDEN_ROWS; ++row) {{
        policy_init(&carry);
        for (step = 0; step < GOLDEN_STEPS; ++step) {{
            if (golden[row][step].reset) {{
                policy_reset(&carry);
            }}
            policy_step({", ".join(given)});
{compared}        }}
    }}
    if (max_error != NULL) {{
        *max_error = worst;
    }}
    return ok ? 0 : 1;
}}
#endif
"""


def golden_source(manifest: Manifest, golden: Mapping[str, np.ndarray]) -> str:
    """Return `policy_golden.h`: as much of the recorded trajectory as a small controller can hold.

    Args:
        manifest: Its ports.
        golden: Recorded tensors `[T, B, ...]`, as in the bundle.
    """
    structs = {
        "observation": [(port, port.name) for port in manifest.observation_ports],
        "action": [(port, port.name) for port in manifest.action_ports],
        "carry": [(port, port.next_name) for port in manifest.carry_ports],
        "extra": [(port, port.name) for port in manifest.extra_output_ports],
    }
    if not structs["extra"]:
        del structs["extra"]
    n_steps, n_rows = golden[RESET].shape
    values = sum(math.prod(port.shape) for ports in structs.values() for port, _ in ports)
    rows = min(n_rows, 2)
    steps = max(1, min(n_steps, GOLDEN_VALUES // (rows * values)))

    def one_step(row: int, step: int) -> str:
        parts = ["true" if golden[RESET][step, row] else "false"]
        for ports in structs.values():
            fields = [initializer(golden[name][step, row], port.dtype) for port, name in ports]
            parts.append("{" + _joined(fields or ["0"]) + "}")
        return "{" + _joined(parts) + "}"

    rows_text = ["{" + _joined([one_step(r, t) for t in range(steps)]) + "}" for r in range(rows)]
    members = "".join(f"    policy_{struct} {struct};\n" for struct in structs)
    return (
        "/* The recorded trajectory: what goes in, and what must come out after that step. */\n"
        f"#define GOLDEN_ROWS {rows}\n#define GOLDEN_STEPS {steps}\n\n"
        f"typedef struct golden_step {{\n    bool reset;\n{members}}} golden_step;\n\n"
        "static const golden_step golden[GOLDEN_ROWS][GOLDEN_STEPS] = {\n"
        f"{_joined(rows_text)}\n}};\n"
    )


def _joined(parts: Sequence[str]) -> str:
    return ",\n".join(parts)
