#!/bin/sh
# Installs the compiler and the emulator for ARM where this may be done; says what to install elsewhere.
set -eu

packages="gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
if command -v arm-none-eabi-gcc >/dev/null && command -v qemu-system-arm >/dev/null; then
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && [ -e /etc/debian_version ]; then
    apt-get update -qq
    # shellcheck disable=SC2086  # several words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
    exit 0
fi
echo "test-embedded: arm-none-eabi-gcc (with newlib) and qemu-system-arm are needed." >&2
echo "On Debian or Ubuntu: sudo apt-get install $packages" >&2
exit 2
