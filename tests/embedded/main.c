/*
 * Start-up of a bare Cortex-M4F, and the policy's self-test. Speaks to the emulator by semihosting:
 * a breakpoint of number 0xAB with an operation in r0 and its argument in r1.
 */
#include "policy.h"

#define CPACR (*(volatile uint32_t *)0xE000ED88u)
#define PAINT 0xA5A5A5A5u

/* Of the linker script, which also puts the first stack pointer before the vectors. */
extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[], stack_bottom[];

void reset_handler(void);
static void fault_handler(void);

__attribute__((section(".vectors"), used)) static void (*const vectors[15])(void) = {
    reset_handler, fault_handler, fault_handler, fault_handler, fault_handler, fault_handler, 0, 0, 0, 0, fault_handler,
    fault_handler, 0, fault_handler, fault_handler};

static void ask_host(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;

    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

static void leave(uint32_t status)
{
    const uint32_t block[2] = {0x20026u, status}; /* ADP_Stopped_ApplicationExit */

    ask_host(0x20u, block);
    for (;;) {
    }
}

static void print_number(const char *name, uint32_t value)
{
    char digits[12];
    int position = 11;

    digits[position] = '\0';
    do {
        digits[--position] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0u);
    ask_host(0x04u, name);
    ask_host(0x04u, " ");
    ask_host(0x04u, &digits[position]);
    ask_host(0x04u, "\n");
}

static void fault_handler(void)
{
    ask_host(0x04u, "fault\n");
    leave(3u);
}

__attribute__((noinline)) static uint32_t act(double *error)
{
    return (uint32_t)policy_self_test(error);
}

static void test(void)
{
    double error = 0.0;
    uint32_t *here;
    uint32_t *word;
    uint32_t failed;

    __asm__ volatile("mov %0, sp" : "=r"(here));
    /* What lies below this frame is painted; what is not paint afterwards has been used. */
    for (word = stack_bottom; word < here - 16; ++word) {
        *(volatile uint32_t *)word = PAINT;
    }
    failed = act(&error);
    for (word = stack_bottom; *(volatile uint32_t *)word == PAINT; ++word) {
    }
    print_number("error_1e-12", error < 4e-3 ? (uint32_t)(error * 1e12) : 0xFFFFFFFFu);
    print_number("stack_bytes", (uint32_t)((char *)here - (char *)word));
    leave(failed);
}

void reset_handler(void)
{
    uint32_t *from = data_load;
    uint32_t *to;

    CPACR |= 0xFu << 20; /* Without this the first instruction of the FPU faults. */
    __asm__ volatile("dsb\n isb");
    for (to = data_start; to < data_end;) {
        *to++ = *from++;
    }
    for (to = bss_start; to < bss_end;) {
        *to++ = 0u;
    }
    test();
}
