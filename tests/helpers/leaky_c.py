"""The leaky policy of the tests of `serving` in C, written by hand as an exporter would."""

from pathlib import Path

from serving.manifest import Artefact

ARTEFACT = Artefact(format="c", entry="c/policy.c")

HEADER = """
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef struct policy_port {
    const char *name;
    const char *role;
    const char *dtype;
    const char *shape;
} policy_port;
"""

SOURCE = """
#include "policy.h"
#include <math.h>

const policy_port policy_ports[] = {
    {"carry.count", "carry", "int32", ""},
    {"carry.hidden", "carry", "float32", "3"},
    {"carry.total", "carry", "float32", "1"},
    {"obs.arm.contact", "observation", "bool", "2"},
    {"obs.arm.position", "observation", "float32", "3"},
    {"obs.goal", "observation", "float32", ""},
    {"action.gripper", "action", "float32", ""},
    {"action.joints", "action", "float32", "3"},
    {"next_carry.count", "next carry", "int32", ""},
    {"next_carry.hidden", "next carry", "float32", "3"},
    {"next_carry.total", "next carry", "float32", "1"},
    {"value", "extra output", "float32", "1"}
};
const size_t policy_port_count = 12;

static const float weights[3][3] = {{0.5f, -0.2f, 0.1f}, {0.3f, 0.4f, -0.6f}, {-0.1f, 0.2f, 0.7f}};

static void policy_network(
    const int32_t *count, const float *hidden, const float *total, const bool *contact,
    const float *position, const float *goal, float *gripper, float *joints, int32_t *next_count,
    float *next_hidden, float *next_total, float *value)
{
    int i, j;

    *next_count = *count + 1;
    next_total[0] = total[0] + *goal;
    *gripper = next_total[0] + (float)*next_count;
    value[0] = 0.0f;
    for (j = 0; j < 3; ++j) {
        next_hidden[j] = 0.9f * hidden[j] + (float)contact[0] + (float)contact[1];
        for (i = 0; i < 3; ++i) {
            next_hidden[j] += position[i] * weights[i][j];
        }
        joints[j] = tanhf(next_hidden[j]);
        value[0] += next_hidden[j];
    }
}
"""


def write(root: Path, source: str = SOURCE) -> None:
    """Write the artefact's files into a bundle under construction."""
    (root / "c").mkdir()
    (root / "c" / "policy.h").write_text(HEADER)
    (root / "c" / "policy.c").write_text(source)
