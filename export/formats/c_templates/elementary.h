#include <math.h>
#include <stdint.h>

/* The C library's would lose a NaN, which must reach the action: the control loop looks for it. */
static inline float policy_fmaxf(float a, float b) { return (a > b || isnan(a)) ? a : b; }
static inline float policy_fminf(float a, float b) { return (a < b || isnan(a)) ? a : b; }
static inline double policy_fmax(double a, double b) { return (a > b || isnan(a)) ? a : b; }
static inline double policy_fmin(double a, double b) { return (a < b || isnan(a)) ? a : b; }

/*
 * exp and tanh of floats, in place of the C library's. Compilers turn loops over these into vector
 * instructions, since nothing in them branches or is called, and their values are the same with
 * every C library. Off by at most 2 and 3 units in the last place. NaN stays NaN.
 */
typedef union {
    float number;
    uint32_t bits;
} policy_float_bits;

/* 2^n for n from -126 to 127. */
static inline float policy_power_of_two(int32_t n)
{
    policy_float_bits power;
    power.bits = (uint32_t)(n + 127) << 23;
    return power.number;
}

/*
 * Splits x = n ln 2 + r, with r at most half of ln 2 from zero, and returns e^r - 1. ln 2 is taken
 * off in two parts, of which the first has so few bits that its product with n is exact. The
 * polynomial for (e^r - 1 - r) / r^2 was fitted for the least relative error of e^r - 1.
 */
static inline float policy_expm1_of_rest(float x, int32_t *n)
{
    const float whole = x * 0x1.715476p+0f;
    float r, p;

    *n = (int32_t)(whole + (whole < 0.0f ? -0.5f : 0.5f));
    r = x - (float)*n * 0x1.62e400p-1f;
    r = r - (float)*n * 0x1.7f7d1cp-20f;
    p = 0x1.a032cap-13f;
    p = p * r + 0x1.6d7296p-10f;
    p = p * r + 0x1.11118ap-7f;
    p = p * r + 0x1.5554b0p-5f;
    p = p * r + 0x1.555554p-3f;
    p = p * r + 0.5f;
    return p * (r * r) + r;
}

static inline float policy_expf(float x)
{
    /* Below and above, the result is 0 and infinity. NaN fails the first comparison. */
    const float above = x > -104.0f ? x : -104.0f;
    const float inside = above < 89.0f ? above : 89.0f;
    int32_t n, half;
    float rest, result;

    rest = policy_expm1_of_rest(inside, &n);
    /* In two steps, since neither 2^128 nor 2^-149 has a usual exponent. */
    half = n / 2;
    result = (1.0f + rest) * policy_power_of_two(half) * policy_power_of_two(n - half);
    return isnan(x) ? x : result;
}

static inline float policy_tanhf(float x)
{
    /* tanh a = (e^2a - 1) / (e^2a + 1), which is 1 in float from a = 9.1 on. */
    const float size = fabsf(x);
    const float inside = size < 10.0f ? size : 10.0f;
    int32_t n;
    float rest, power, expm1;

    rest = policy_expm1_of_rest(2.0f * inside, &n);
    power = policy_power_of_two(n);
    expm1 = rest * power + (power - 1.0f);
    return isnan(x) ? x : copysignf(expm1 / (expm1 + 2.0f), x);
}
