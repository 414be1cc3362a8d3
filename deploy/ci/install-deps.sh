#!/bin/sh
# Installs what building and testing kvd needs on Debian 12: this is the one list of packages.
# Root or sudo; safe to run again, and quick when nothing is missing.
#
#   sh deploy/ci/install-deps.sh [--build | --tidy | --fuzz]
#
# --build installs only what building needs, without tests and llama.cpp: a quarter of the packages.
# --tidy adds what the preset `tidy` needs.
# --fuzz installs only what the preset `fuzz` needs.
#
# The llama.cpp engine comes from the npm registry at the versions pinned in client_lib/llama. Where
# that registry cannot be reached the script says so and goes on: kvd builds and passes its tests
# without it. KVD_REQUIRE=llama (or npm) makes that an error. KVD_REQUIRE=cuda has the CUDA compiler
# fetched where no toolkit is (cuda-toolkit.sh); otherwise that is left to whoever wants CUDA.
# KVD_REQUIRE=vllm has vLLM for CPUs fetched (vllm.sh), 0.9 GB; without it nothing of vLLM is.
# KVD_REQUIRE=monitoring has Prometheus, Helm and Grafana's schemas fetched (monitoring.sh), 80 MB.
# KVD_REQUIRE=redis has Debian's Redis fetched (redis.sh), 3 MB.
# KVD_REQUIRE=rest has schemathesis fetched (rest.sh), 20 MB.
# KVD_REQUIRE=routers has vllm-router, Dynamo's indexer and Valkey fetched (routers.sh), 110 MB.
set -eu

BUILD_PACKAGES="g++ cmake ninja-build make ccache git pkg-config ca-certificates"
LIBRARY_PACKAGES="libboost-dev libzmq3-dev cppzmq-dev libssl-dev libcpprest-dev prometheus-cpp-dev
  libglpk-dev liburing-dev libnuma-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libspdlog-dev
  libfmt-dev libncurses-dev"
TEST_PACKAGES="libgtest-dev libgmock-dev clang-format curl jq chromium
  python3 python3-pip python3-venv python3-setuptools python3-wheel mypy" # the Python packages and their wheel
# CMake looks for these though nobody builds the tests; the quick start asks kvd by curl.
BUILD_ALONE_PACKAGES="libgtest-dev libgmock-dev curl"
TIDY_PACKAGES="clang clang-tidy"
FUZZ_PACKAGES="clang libclang-rt-dev llvm" # llvm: names in the stacks of findings
PIP_PACKAGES="python3 python3-pip" # to fetch the CUDA compiler with

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cuda_toolkit="$root/deploy/ci/cuda-toolkit.sh"
engine="$root/client_lib/llama"

say() { printf '[deps] %s\n' "$*"; }
fail() { say "error: $*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    fail "root or sudo is needed to run: $*"
  fi
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# The words of $@ that are not installed. A node from elsewhere is left alone: Debian's npm is asked
# for only where there is none.
missing_packages() {
  for package in "$@"; do
    is_installed "$package" || printf '%s ' "$package"
  done
  [ -n "$only_build" ] || command -v npm >/dev/null 2>&1 || printf 'nodejs npm '
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

install_packages() {
  command -v dpkg-query >/dev/null 2>&1 ||
    fail "this script knows Debian 12 only; install by hand: $*"
  missing=$(missing_packages "$@")
  if [ -z "$missing" ]; then
    say "Debian packages: all there"
    return
  fi
  say "Debian packages: installing $missing"
  apt update >/dev/null || say "the package index could not be refreshed; trying the one at hand"
  # shellcheck disable=SC2086  # a list of words
  apt install -y --no-install-recommends $missing >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; fail "apt-get could not install: $missing"; }
  say "Debian packages: done"
}

requires() {
  case ",${KVD_REQUIRE:-}," in *,"$1",*) return 0 ;; esac
  return 1
}

engine_is_current() {
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(lock_hash)" ]
}

lock_hash() { sha256sum "$engine/package-lock.json" | cut -d' ' -f1; }

install_engine() {
  stamp="$engine/node_modules/.kvd-lock.sha256"
  if engine_is_current; then
    say "llama.cpp engine (npm): there, as pinned"
    return
  fi
  say "llama.cpp engine (npm): fetching the pinned packages, about 120 MB"
  if (cd "$engine" && npm ci --ignore-scripts --omit=optional --no-audit --no-fund \
    --loglevel=error --fetch-retries=2 --fetch-retry-mintimeout=2000 \
    --fetch-retry-maxtimeout=10000) >"$log" 2>&1 </dev/null; then
    lock_hash >"$stamp"
    say "llama.cpp engine (npm): done"
    return
  fi
  tail -n 15 "$log" >&2
  if requires llama || requires npm; then
    fail "the llama.cpp engine could not be fetched, and KVD_REQUIRE=$KVD_REQUIRE asks for it"
  fi
  say "llama.cpp engine (npm): not fetched, so the parts that need it are left out"
}

has_pip() { python3 -m pip --version >/dev/null 2>&1 || /usr/bin/python3 -m pip --version >/dev/null 2>&1; }

install_cuda_compiler() {
  requires cuda || return 0
  if [ -z "$(sh "$cuda_toolkit")" ]; then
    # shellcheck disable=SC2086  # a list of words
    has_pip || install_packages $PIP_PACKAGES
  fi
  toolkit=$(sh "$cuda_toolkit" --fetch) ||
    fail "no CUDA toolkit of 13.0 or newer, and KVD_REQUIRE=$KVD_REQUIRE asks for one"
  say "CUDA compiler: $toolkit"
}

# fetch_required NAME WHAT: what NAME.sh fetches, where KVD_REQUIRE has NAME.
fetch_required() {
  requires "$1" || return 0
  place=$(sh "$root/deploy/ci/$1.sh" --fetch) ||
    fail "$2 could not be fetched, and KVD_REQUIRE=$KVD_REQUIRE asks for it"
  say "$2: $place"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
extra=""
only_build=""
case "${1:-}" in
  "") ;;
  --build) only_build=yes TEST_PACKAGES=$BUILD_ALONE_PACKAGES ;;
  --tidy) extra=$TIDY_PACKAGES ;;
  --fuzz) only_build=yes TEST_PACKAGES=$FUZZ_PACKAGES ;;
  *) fail "usage: sh deploy/ci/install-deps.sh [--build | --tidy | --fuzz]" ;;
esac
# shellcheck disable=SC2086  # lists of words
install_packages $BUILD_PACKAGES $LIBRARY_PACKAGES $TEST_PACKAGES $extra
[ -z "$only_build" ] || exit 0
install_engine
install_cuda_compiler
fetch_required vllm vLLM
fetch_required monitoring Prometheus
fetch_required redis Redis
fetch_required rest schemathesis
fetch_required routers vllm-router
