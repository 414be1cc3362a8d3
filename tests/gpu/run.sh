#!/bin/sh
# One command on a machine with an NVIDIA GPU: the CUDA test programs and kvd itself with two engines
# on the real driver, and the experiments of kvd-gpu-report. Builds nothing. Runs from a bundle
# (deploy/package/bundle.sh) or from a build folder.
#
#   tests/gpu/run.sh [--part 1|2] [--only E3,E5] [--open] [--seconds S] [BUILD-FOLDER]
#
# Each part is a call of 9 minutes at most; without --part both, 18 minutes. The first is about what
# decides most: test programs, kvd with engines, and the experiments whose answer is worth most.
# --only: those experiments and nothing else. --open: what no GPU has run yet, the tests behind one that
# hung in the first report, and kvd with engines; a minute, no experiment. --seconds: of each call, where
# less than 9 minutes are to be had; experiments that need longer than is left are left out.
#
# Writes $OUT/part-1 and $OUT/part-2 (OUT: ./gpu-report) with gpu-report.json, gpu-report.md (both
# rewritten after each experiment) and logs.
# Exit status: 0 all passed, 1 a test failed or a criterion was missed, 2 it could not run. Without a
# GPU the report says so and why, with nothing measured.
set -u

# An editable bound for each thing; those of a part sum up to less than its 540 s.
suite_limit=90       # seconds each test program, at most
suites_budget=140    # all of them: none starts later
live_seconds=20      # kvd with two engines
live_limit=80
call_limit=530

part= only= open=
while [ $# -ge 1 ]; do
  case "$1" in
    --part) part=${2:-}; shift 2 || exit 2 ;;
    --only) only=${2:-}; shift 2 || exit 2 ;;
    --open) open=1; shift ;;
    --seconds) call_limit=${2:-}; shift 2 || exit 2 ;;
    --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "run.sh: $1 is not understood" >&2; exit 2 ;;
    *) break ;;
  esac
done
case "$call_limit" in
  "" | *[!0-9]*) echo "run.sh: --seconds is a whole number" >&2; exit 2 ;;
esac
case "$part" in
  1 | 2) ;;
  "")
    if [ -z "$only$open" ]; then
      worst=0
      for each in 1 2; do
        status=0
        sh "$0" --part $each --seconds "$call_limit" "$@" || status=$?
        [ $status -le $worst ] || worst=$status
      done
      exit $worst
    fi
    ;;
  *) echo "run.sh: --part is 1 or 2" >&2; exit 2 ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
OUT=${OUT:-./gpu-report}/${part:+part-}${part:-${open:+open}${only:+only}}
mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd)
started=$(date +%s)

say() { printf '%4d s  %s\n' "$(($(date +%s) - started))" "$*"; }
fail() { echo "run.sh: $*" >&2; exit 2; }

# no_gpu REASON: a report of one line, so that whoever collects reports learns why there is no other.
no_gpu() {
  quoted=$(printf '%s' "$1" | tr '\n\t' '  ' | sed 's/\\/\\\\/g; s/"/\\"/g')
  printf '{"driver": "none", "passed": false, "reason": "%s", "device": {}, "experiments": []}\n' \
    "$quoted" >"$OUT/gpu-report.json"
  printf '# GPU report of kvd\n\nNo GPU here, nothing was run: %s\n\nMachine: %s\n' \
    "$1" "$(uname -srm)" >"$OUT/gpu-report.md"
  echo "run.sh: no GPU here: $1" >&2
  echo "run.sh: $OUT/gpu-report.md says no more than that" >&2
  exit 2
}

# Where the programs are: bin/ and libexec of a bundle, or bin/ and tests/ of a build folder.
if [ $# -ge 1 ]; then
  build=$(cd "$1" && pwd) || fail "no folder $1"
elif [ -x "$top/bin/kvd-gpu-report" ]; then
  build=$top
else
  build=
  for folder in "$top/build/release" "$top/build/cuda"; do
    [ -x "$folder/bin/kvd-gpu-report" ] && build=$folder && break
  done
fi
[ -n "$build" ] || fail "no built programs found: give the build folder, or unpack a bundle"
bin=$build/bin
tests=$build/tests
[ -x "$bin/kvd-gpu-report" ] || fail "$bin/kvd-gpu-report is missing: it is built where nvcc 13 is found"

# Children that the test programs start.
export KVDTEST_BIN_DIR="$bin"
export KVDTEST_CUDA_DAEMON="$tests/kvd-cuda-daemon"
export KVDTEST_CUDA_ENGINE="$tests/kvd-cuda-engine"
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true

if command -v nvidia-smi >/dev/null 2>&1; then
  nvidia-smi -q >"$OUT/nvidia-smi.txt" 2>&1 || true
  nvidia-smi -L 2>/dev/null || true
  # One GPU alone: with several, each process would start all of them. Not in MIG mode, where what
  # the driver shows first is an instance.
  uuid=$(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU .*UUID: \(GPU-[^)]*\)).*/\1/p' | head -n 1)
  if [ -z "${CUDA_VISIBLE_DEVICES+set}" ] && [ -n "$uuid" ] && ! nvidia-smi -L | grep -q MIG-; then
    export CUDA_VISIBLE_DEVICES="$uuid"
  fi
fi

# Keeps the GPUs open, as persistence mode does: otherwise every start takes seconds. kvd-gpu-report
# does the same for its experiments, and lets go where that matters.
holders=
hold() {
  for device in /dev/nvidia[0-9]*; do
    [ -r "$device" ] && [ -w "$device" ] || continue
    sleep 600 8<>"$device" &
    holders="$holders $!"
  done
}
let_go() {
  # shellcheck disable=SC2086  # a list of numbers
  [ -z "$holders" ] || kill $holders 2>/dev/null
  holders=
}
trap let_go EXIT

suites=$OUT/suites.txt
: >"$suites"
failed=0
# suite PROGRAM FILTER: runs it, adds a line to $suites.
suite() {
  program=$tests/$1
  log=$OUT/$1.log
  begun=$(date +%s)
  if [ ! -x "$program" ]; then
    say "$1: not there, left out"
    return
  fi
  if [ $((begun - started)) -ge $suites_budget ]; then
    say "$1: left out, the time for test programs is used up"
    echo "$1 1 0 0 0 0" >>"$suites"
    failed=1
    return
  fi
  status=0
  timeout -k 5 $suite_limit "$program" --gtest_filter="$2" >"$log" 2>&1 || status=$?
  passed=$(grep -c '^\[       OK \]' "$log")
  broken=$(grep -c '^\[  FAILED  \].* (' "$log")
  skipped=$(grep -c '^\[  SKIPPED \].* (' "$log")
  echo "$1 $status $passed $broken $skipped $(($(date +%s) - begun))" >>"$suites"
  grep '^\[  FAILED  \].* (' "$log" | sed 's/^\[  FAILED  \]/-/' | sort -u >>"$suites"
  [ "$status" -eq 0 ] || failed=1
  say "$1: status $status, $passed passed, $broken failed, $skipped skipped"
}

# fake_driver_tests PROGRAM: a filter of its tests with the label fake-driver, faults on demand, devices and
# memory that are not there. A bundle has the list; ctest knows it of a build.
fake_driver_tests() {
  if [ -f "$here/fake-driver-tests.txt" ]; then
    cat "$here/fake-driver-tests.txt"
  else
    ctest --test-dir "$build" -N -L '^fake-driver$' | sed -n 's/^ *Test *#[0-9]*: //p'
  fi | sed -n "s/^$1\\.//p" | sed 's|^\([^/]*/[^/]*\)/.*|\1/*|' | sort -u | paste -sd: -
}

test_programs() {
  say "test programs on the $driver driver"
  suite cuda_contract_test '*'
  if [ "$driver" = fake ]; then
    suite daemon_cuda_test '*'
    suite cuda_processes_test '*'
    suite cuda_schedule_test '*-Mutants*'
    return
  fi
  export KVDTEST_REAL=1
  for program in daemon_cuda_test cuda_processes_test; do
    left_out=$(fake_driver_tests $program)
    [ -n "$left_out" ] || fail "no test of $program has the label fake-driver: is $build whole?"
    suite $program "*-$left_out"
  done
  {
    echo "- cuda_schedule_test: not run, its engine's kernels are host code, which a fake driver alone runs"
    echo "- daemon_cuda_test, cuda_processes_test: not run are the tests of faults that a fake driver alone makes"
  } >>"$suites"
}

# What the report of 2026-11-27 left open: CudaStream.ThatNeverEnds… hung, and those after it did not run.
open_tests() {
  say "what no GPU has run, on the $driver driver"
  [ "$driver" = fake ] || export KVDTEST_REAL=1
  suite daemon_cuda_test 'CudaStream.ThatNeverEnds*:CudaStream.TakesTurns*:CudaStream.WakesADaemon*:CudaStream.WaitsForNoLayers*:CudaStream.OfADeadDaemonGoesOnPast*:CudaEngines/RotationThrough.*'
}

live() {
  say "kvd with two engines"
  begun=$(date +%s)
  status=0
  if [ "$driver" = fake ]; then
    timeout -k 5 $live_limit sh "$here/live.sh" "$bin" 3 small >"$OUT/live.txt" 2>&1 || status=$?
  else
    timeout -k 5 $live_limit sh "$here/live.sh" "$bin" $live_seconds >"$OUT/live.txt" 2>&1 || status=$?
  fi
  [ $status -eq 0 ] && echo "kvd-with-two-engines 0 1 0 0 $(($(date +%s) - begun))" >>"$suites"
  [ $status -eq 0 ] || { failed=1; echo "kvd-with-two-engines $status 0 1 0 $(($(date +%s) - begun))" >>"$suites"; }
  sed 's/^/- kvd with two engines: /' "$OUT/live.txt" >>"$suites"
  say "kvd with two engines: status $status"
}

# experiments SECONDS
experiments() {
  say "experiments"
  let_go
  status=0
  timeout -k 5 $(($1 + 15)) "$bin/kvd-gpu-report" --out "$OUT" --suites "$suites" --seconds "$1" \
    ${part:+--part "$part"} ${only:+--only "$only"} || status=$?
  [ "$status" -eq 0 ] || failed=1
  [ -s "$OUT/gpu-report.json" ] || { echo "run.sh: no report was written" >&2; failed=1; }
}

driver=$("$bin/kvd-gpu-report" --which 2>"$OUT/driver.txt") || driver=none
[ "$driver" != none ] || no_gpu "$(cat "$OUT/driver.txt")"
[ -n "$only" ] || hold
if [ "$part" = 1 ]; then test_programs; live; fi
if [ -n "$open" ]; then
  open_tests
  live
  cat "$suites"
  exit $failed
fi
experiments $((call_limit - 15 - ($(date +%s) - started)))

took=$(($(date +%s) - started))
if [ $failed -eq 0 ]; then say "passed; report in $OUT"; else say "FAILED; report in $OUT"; fi
[ $took -lt 540 ] || echo "run.sh: took $took s, more than its 9 minutes" >&2
exit $failed
