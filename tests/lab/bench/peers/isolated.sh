#!/bin/sh
# Runs a program where there is no network but the loopback device, as Mooncake's data ports listen on all
# addresses.
#
#   sh tests/lab/bench/peers/isolated.sh PROGRAM WORD…
#
# Needs unshare and ip; root, or a kernel that gives users namespaces.
set -eu

fail() { printf '[peers] error: %s\n' "$*" >&2; exit 1; }

if [ "$(id -u)" = 0 ]; then namespace="unshare --net"; else namespace="unshare --net --map-root-user"; fi
$namespace true 2>/dev/null ||
  fail "no network namespace here ($namespace), and Mooncake's data ports listen on all addresses: not run"
# shellcheck disable=SC2016
exec $namespace sh -c 'ip link set lo up && exec "$@"' peers "$@"
