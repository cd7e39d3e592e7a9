"""The functions that exported C has in place of the C library's."""

from __future__ import annotations

import json

import pytest
from c_policies import compile_and_run_alone

from export.formats.c_network import ELEMENTARY

# Of all floats every 251st, so that signs, exponents and last bits of all kinds are among them.
PROGRAM = """
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include "elementary.h"

static double error_in_ulp(float given, double exact)
{
    const float rounded = (float)exact;
    int exponent;

    if (isinf(rounded) || isinf(given)) {
        return given == rounded ? 0.0 : DBL_MAX;
    }
    frexp(exact, &exponent);
    if (exponent < FLT_MIN_EXP) {
        exponent = FLT_MIN_EXP;
    }
    return fabs(given - exact) / ldexp(1.0, exponent - FLT_MANT_DIG);
}

int main(void)
{
    double worst[2] = {0.0, 0.0};
    float where[2] = {0.0f, 0.0f};
    int wrong_signs = 0, nan_lost = 0;
    uint64_t pattern;

    for (pattern = 0; pattern < 0x100000000u; pattern += 251) {
        policy_float_bits x;
        double errors[2];
        int k;

        x.bits = (uint32_t)pattern;
        if (isnan(x.number)) {
            nan_lost += !isnan(policy_expf(x.number)) + !isnan(policy_tanhf(x.number));
            continue;
        }
        errors[0] = error_in_ulp(policy_expf(x.number), exp(x.number));
        errors[1] = error_in_ulp(policy_tanhf(x.number), tanh(x.number));
        wrong_signs += signbit(policy_tanhf(x.number)) != signbit(x.number);
        for (k = 0; k < 2; ++k) {
            if (errors[k] > worst[k]) {
                worst[k] = errors[k];
                where[k] = x.number;
            }
        }
    }
    printf("{\\"exp\\": %.4g, \\"tanh\\": %.4g, \\"at\\": [%.9g, %.9g], "
           "\\"wrong_signs\\": %d, \\"nan_lost\\": %d}\\n",
           worst[0], worst[1], where[0], where[1], wrong_signs, nan_lost);
    return 0;
}
"""


@pytest.mark.parametrize("flags", [("-O2",), ("-O3", "-march=native", "-ffp-contract=fast")])
def test_exp_and_tanh_are_as_close_as_they_say(tmp_path, flags):
    done = compile_and_run_alone(PROGRAM, tmp_path, f"-I{ELEMENTARY.parent}", *flags)
    found = json.loads(done.stdout)
    assert found["exp"] < 2.0, found
    assert found["tanh"] < 3.0, found
    assert found["wrong_signs"] == 0 and found["nan_lost"] == 0
