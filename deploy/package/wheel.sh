#!/bin/sh
# Makes the Python wheel: kvd_client, kvd_sglang and kvd_vllm with the libkvd_client.so of a finished build.
#
#   deploy/package/wheel.sh [OUT]           OUT: a folder, ./dist; prints the wheel's path
#   BUILD=build/dev PYTHON=python3.12 deploy/package/wheel.sh
#
# Needs a finished build (BUILD, default build/release) and a Python of 3.11 or newer with pip,
# setuptools and wheel: python3-pip, python3-setuptools and python3-wheel of Debian. Asks no network.
# The wheel runs where the library does: this kind of machine, its C library or a newer one, libzmq5.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
BUILD=${BUILD:-$top/build/release}
PYTHON=${PYTHON:-python3}
OUT=${1:-./dist}

fail() { echo "wheel.sh: $*" >&2; exit 1; }
library=$BUILD/lib/libkvd_client.so
[ -e "$library" ] || fail "$library is missing: cmake --preset release && cmake --build --preset release --target kvd_client"
{ "$PYTHON" -c 'import setuptools, wheel' && "$PYTHON" -m pip --version; } >/dev/null 2>&1 ||
  fail "$PYTHON has no pip, setuptools or wheel: install python3-pip, python3-setuptools and python3-wheel"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$top/client_lib/python" "$work/source"
cp -L "$library" "$work/source/kvd_client/libkvd_client.so"
strip --strip-unneeded "$work/source/kvd_client/libkvd_client.so" # its functions stay: they are exported
"$PYTHON" -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$work/out" \
  "$work/source" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "pip could not make the wheel"; }
mkdir -p "$OUT"
cp "$work/out"/*.whl "$OUT"
for file in "$work/out"/*.whl; do printf '%s\n' "$OUT/$(basename "$file")"; done
