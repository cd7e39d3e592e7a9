"""The text of `policy.h`: what a program that uses the policy sees."""

from __future__ import annotations

import math

from export.formats.c_names import comment, declaration, field_names, quoted
from serving.manifest import Manifest, Port

STRUCTS = ("observation", "carry", "action", "extra")
"""A `struct policy_...` each; `extra` only in a policy with extra outputs."""


def ports_of(manifest: Manifest) -> dict[str, list[Port]]:
    """Return the ports of each struct."""
    lists = (
        manifest.observation_ports,
        list[Port](manifest.carry_ports),
        manifest.action_ports,
        manifest.extra_output_ports,
    )
    return dict(zip(STRUCTS, lists, strict=True))


def step_parameters(manifest: Manifest) -> str:
    """Return the parameters of `policy_step`."""
    parameters = ["policy_carry *carry", "const policy_observation *observation"]
    if manifest.reset_port is not None:
        parameters.append("bool reset")
    parameters.append("policy_action *action")
    if manifest.extra_output_ports:
        parameters.append("policy_extra *extra")
    return ", ".join(parameters)


def header(manifest: Manifest, stack_bytes: int) -> str:
    """Return the whole header.

    Args:
        manifest: Ports, rate and metadata.
        stack_bytes: What the network's intermediate results take.
    """
    return "\n".join(
        [
            "/*",
            f" * The policy {comment(manifest.name)} as plain C99: no heap, no operating system; it"
            " needs <math.h>,",
            " * <string.h> and the headers of types only. Compile policy.c, and link with -lm.",
            " *",
            " * Fields are named after the bundle's ports (the name beside each field); what is not"
            " a letter or",
            " * digit is an underscore. Arrays are row-major. One call acts for one robot; each has"
            " a policy_carry",
            " * of its own, and nothing else is remembered, so that threads may act at once.",
            " */",
            "#ifndef POLICY_H",
            "#define POLICY_H",
            "",
            "#include <stdbool.h>",
            "#include <stddef.h>",
            "#include <stdint.h>",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            *_macros(manifest, stack_bytes),
            "",
            *_structs(manifest),
            _PORTS,
            _functions(manifest),
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            "#endif",
            "",
        ]
    )


def _macros(manifest: Manifest, stack_bytes: int) -> list[str]:
    lines = [f"#define POLICY_NAME {quoted(manifest.name)}"]
    if manifest.control_rate_hz is not None:
        lines += [
            "/* Steps per second for which the policy was trained. */",
            f"#define POLICY_CONTROL_RATE_HZ {float(manifest.control_rate_hz)!r}",
        ]
    lines += [
        "/* Bytes of intermediate results on the stack in policy_step; the compiler may need"
        " fewer. */",
        f"#define POLICY_STACK_BYTES {stack_bytes}",
        "/* Number of values in each field. */",
    ]
    for ports in ports_of(manifest).values():
        names = field_names(ports)
        lines += [f"#define POLICY_SIZE_{names[p.name]} {math.prod(p.shape)}" for p in ports]
    # A name can be in two structs, with one size or with two.
    lines = [line for index, line in enumerate(lines) if line not in lines[:index]]
    taken = [line.split()[1] for line in lines if line.startswith("#define")]
    return [
        line
        for line in lines
        if not line.startswith("#define POLICY_SIZE_") or taken.count(line.split()[1]) == 1
    ]


def _structs(manifest: Manifest) -> list[str]:
    notes = {
        "observation": "What the policy sees in one step.",
        "carry": "What one robot's policy remembers. policy_init gives it its first value.",
        "action": "What the policy puts out.",
        "extra": "What was asked for beside the action.",
    }
    lines: list[str] = []
    for struct, ports in ports_of(manifest).items():
        if struct == "extra" and not ports:
            continue
        names = field_names(ports)
        lines += [f"/* {notes[struct]} */", "typedef struct policy_" + struct + " {"]
        for port in ports:
            lines.append(
                f"    {declaration(port, names[port.name])}; /* {_about(port, manifest)} */"
            )
        if not ports:
            lines.append("    char nothing; /* C99 has no empty struct. */")
        lines += [f"}} policy_{struct};", ""]
    return lines


def _about(port: Port, manifest: Manifest) -> str:
    text = f"{port.name}: {port.dtype}{port.shape}"
    units = manifest.metadata.units
    if isinstance(units, dict) and port.name in units:
        text += f", {units[port.name]}"
    reset = getattr(port, "reset", None)
    if reset == "keep":
        text += ", kept by policy_reset"
    return comment(text)


_PORTS = """\
/* What each port is: a step's inputs in order (carry, observation, reset), then its outputs. */
typedef struct policy_port {
    const char *name;  /* in the bundle's manifest */
    const char *role;  /* "carry", "observation", "reset", "action", "next carry", "extra output" */
    const char *dtype; /* "float32", "bool", ... */
    const char *shape; /* sizes with commas between: "2,3"; "" for a single value */
} policy_port;

extern const policy_port policy_ports[];
extern const size_t policy_port_count;
"""


def _functions(manifest: Manifest) -> str:
    units = manifest.metadata.units
    said = f" Units: {comment(units)}." if isinstance(units, str) else ""
    reset = (
        "\n * reset: true starts from the carry of policy_init in this very step.\n"
        if manifest.reset_port is not None
        else "\n"
    )
    extra = " * extra: filled too; may be NULL.\n" if manifest.extra_output_ports else ""
    return f"""\
/* Give a carry the value of a fresh robot. To be called once before the first step. */
void policy_init(policy_carry *carry);

/* Start a new episode: as policy_init, but what the network keeps over resets stays. */
void policy_reset(policy_carry *carry);

/*
 * Compute the action for one observation and advance the carry. Never fails. NaN in gives NaN out:
 * check sensors before, or actions after.{said}
 *
 * carry: in and out; of this robot.
 * observation: read only.{reset} * action: filled; must not overlap the others.
{extra} */
void policy_step({step_parameters(manifest)});

#ifdef POLICY_SELF_TEST
/*
 * Replay the trajectory that was recorded from the trained network, and compare actions and carry.
 * Compile policy.c with -DPOLICY_SELF_TEST to have it; the recorded values are in the program then.
 *
 * max_error: set to the largest difference; may be NULL.
 * Returns 0 if every value is within POLICY_SELF_TEST_TOLERANCE (absolute, plus that times the
 * expected value), else 1.
 */
int policy_self_test(double *max_error);
#endif
"""
