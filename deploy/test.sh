#!/bin/sh
# Builds kvd and runs its tests: installs what is missing, configures, builds, tests.
#
#   sh deploy/test.sh [--vllm] [release|asan|tsan]     default release; tsan runs the tests with threads
#
# --vllm   the tests on real vLLM processes too: as KVD_REQUIRE=vllm
# KVD_REQUIRE=llama,npm   a skipped test with one of these labels fails the run, and in the release
#                         run a label without any test does too. Otherwise skipped tests are listed
#                         with their reason and the run passes. KVD_REQUIRE=cuda fetches the CUDA
#                         compiler where no toolkit is (deploy/ci/cuda-toolkit.sh), KVD_REQUIRE=vllm
#                         a vLLM for CPUs (deploy/ci/vllm.sh), 0.9 GB.
set -eu

if [ "${1:-}" = --vllm ]; then
  KVD_REQUIRE="${KVD_REQUIRE:+$KVD_REQUIRE,}vllm"
  export KVD_REQUIRE
  shift
fi
preset=${1:-release}
case "$preset" in
  release | asan) target=all ;;
  tsan) target=kvd_threads_tests ;;
  *) echo "usage: sh deploy/test.sh [--vllm] [release|asan|tsan]" >&2; exit 2 ;;
esac

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
build="build/$preset"
results="$build/test-results"
jobs=$(nproc)
[ "$jobs" -le 2 ] || jobs=2 # more compilers than this need more than 8 GiB of memory
tests=$((jobs + 1))         # most of them wait for some of their time

# The CUDA parts are built where CMake finds a toolkit; where they are required, this one.
use_cuda_toolkit() {
  case ",${KVD_REQUIRE:-}," in *,cuda,*) ;; *) return 0 ;; esac
  CUDA_HOME=$(sh deploy/ci/cuda-toolkit.sh)
  export CUDA_HOME
}

say() { printf '\n== %s: %s\n' "$preset" "$*"; }

# phase TEXT COMMAND…: runs the command and says how long it took.
phase() {
  text=$1
  shift
  say "$text"
  began=$(date +%s)
  status=0
  "$@" || status=$?
  printf '== %s: %s: %s s\n' "$preset" "$text" "$(($(date +%s) - began))"
  return "$status"
}

# ThreadSanitizer of g++ 12 needs the memory layout without randomisation on newer kernels.
fixed_layout() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    setarch "$(uname -m)" -R "$@"
  else
    "$@"
  fi
}

run_ctest() {
  fixed_layout ctest --preset "$preset" --parallel "$tests" --no-tests=error \
    --output-junit "$root/$results/junit.xml" --output-log "$root/$results/ctest.log"
}

# "name: reason" of every skipped test, from the report of the run.
skipped_tests() {
  awk '
    /<testcase name="/ { name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name); skipped = 0; reason = "" }
    /<skipped / { skipped = 1 }
    skipped && take && NF { if ($0 !~ /^\[ /) reason = $0; take = 0 }
    skipped && /: Skipped$/ { take = 1 }
    /<\/testcase>/ && skipped { print name ": " (reason == "" ? "no reason given" : reason); skipped = 0; take = 0 }
  ' "$results/junit.xml" | sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&apos;/'"'"'/g; s/&amp;/\&/g'
}

# The names of the tests that carry a label in this preset.
labelled_tests() {
  ctest --preset "$preset" -N -L "^$1\$" | sed -n 's/^ *Test *#[0-9]*: //p'
}

# Fails when a label of KVD_REQUIRE has a skipped test, or, in the release run, no test at all.
check_required() {
  verdict=0
  for label in $(printf '%s' "${KVD_REQUIRE:-}" | tr ',' ' '); do
    labelled_tests "$label" >"$results/labelled"
    if [ "$preset" = release ] && [ ! -s "$results/labelled" ]; then
      printf 'KVD_REQUIRE: no test has the label %s\n' "$label"
      verdict=1
    fi
    if cut -d: -f1 "$results/skipped" | grep -Fxf "$results/labelled" >"$results/refused"; then
      sed "s/^/KVD_REQUIRE: skipped, but $label is required: /" "$results/refused"
      verdict=1
    fi
  done
  return "$verdict"
}

report() {
  skipped_tests >"$results/skipped"
  if [ -s "$results/skipped" ]; then
    printf '\nskipped tests and why:\n'
    sed 's/^/  /' "$results/skipped"
  fi
  check_required || status=1
  printf '\n'
  grep -E 'tests passed, |^Total Test time|\((Failed|Timeout|Not Run|SEGFAULT|Subprocess aborted)\)' \
    "$results/ctest.log" || true
}

phase "dependencies" sh deploy/ci/install-deps.sh
use_cuda_toolkit
phase "configure" cmake --preset "$preset"
phase "build" cmake --build --preset "$preset" --parallel "$jobs" --target "$target"
mkdir -p "$results"
status=0
phase "test" run_ctest || status=$?
report
exit "$status"
