#!/bin/sh
# Builds llama.cpp's own programs from the source that comes with the pinned npm packages, for the
# tests with the label llama-programs: llama-server, llama-bench and llama-cli, once linked statically
# and once with backends that are loaded at run time. A quarter of an hour of two cores; afterwards
# they lie in a cache outside the clone, and a second call finds them there.
#
#   sh deploy/ci/build-llama-programs.sh [--where]    --where only prints the cache's folder
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
package="$root/client_lib/llama/node_modules/node-llama-cpp"
bundle="$package/llama/gitRelease.bundle"
programs="llama-server llama-bench llama-cli"

say() { printf '[llama-programs] %s\n' "$*"; }
fail() { say "error: $*" >&2; exit 1; }

[ -f "$bundle" ] || fail "llama.cpp's source is not there: sh deploy/ci/install-deps.sh fetches it"
release=$(sed -n 's/.*"tag": *"\([^"]*\)".*/\1/p' "$package/llama/llama.cpp.info.json")
[ -n "$release" ] || fail "$package/llama/llama.cpp.info.json names no release"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvd/llama-programs/$release"

# The engine's own computing at full optimisation, as users run it; what stands around it only has
# to be compiled quickly.
compile() {
  flavour=$1
  shift
  [ ! -e "$cache/$flavour/complete" ] || { say "$release, $flavour: there"; return 0; }
  say "$release, $flavour: building"
  build="$cache/$flavour"
  cmake -S "$cache/source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DCMAKE_PROJECT_ggml_INCLUDE="$cache/ggml-flags.cmake" \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DLLAMA_ALL_WARNINGS=OFF -DGGML_ALL_WARNINGS=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF "$@" >"$cache/$flavour.log" 2>&1 ||
    { tail -n 20 "$cache/$flavour.log" >&2; fail "cmake failed, see $cache/$flavour.log"; }
  # shellcheck disable=SC2086  # a list of words
  nice -n "${KVD_NICE:-10}" cmake --build "$build" --parallel 2 --target $programs ggml-cpu \
    >>"$cache/$flavour.log" 2>&1 ||
    { tail -n 20 "$cache/$flavour.log" >&2; fail "the build failed, see $cache/$flavour.log"; }
  find "$build" -name '*.o' -delete
  : >"$build/complete"
  say "$release, $flavour: done"
}

if [ "${1:-}" = --where ]; then
  printf '%s\n' "$cache"
  exit 0
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # one build at a time; who comes second finds the programs there
if [ ! -e "$cache/source/CMakeLists.txt" ]; then
  rm -rf "$cache/source"
  git -c advice.detachedHead=false clone --quiet "$bundle" "$cache/source"
fi
printf 'set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")\n' >"$cache/ggml-flags.cmake"
# As the shared libraries are compiled, so that ccache need not compile most files twice.
compile static -DBUILD_SHARED_LIBS=OFF -DCMAKE_CXX_FLAGS="-DGGML_SHARED -DLLAMA_SHARED"
# Without OpenMP, so that ggml's own threads are tried, too.
compile dynamic -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF
say "in $cache"
