#!/bin/sh
# One command on a machine with an NVIDIA GPU: the CUDA test programs on the real driver, the
# experiments E1-E17 and the copy matrix; 9 minutes at most. Builds nothing. Runs from a bundle
# (deploy/package/bundle.sh) or from a build folder.
#
#   tests/gpu/run.sh [BUILD-FOLDER]
#
# Writes $OUT/gpu-report.json, gpu-report.md, copy-table.toml and the logs (OUT: ./gpu-report).
# Exit status: 0 all passed, 1 a test failed or a criterion was missed, 2 it could not run. Without a
# GPU the report says so and why, with nothing measured.
set -u

# An editable bound for each part; their sum is the 9 minutes.
suite_limit=45       # seconds each, at most
suites_budget=45     # all of them: none starts later
report_limit=385     # kvd-gpu-report begins nothing that may end after 380 s
matrix_limit=60

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
OUT=${OUT:-./gpu-report}
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
fi

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

driver=$("$bin/kvd-gpu-report" --which 2>"$OUT/driver.txt") || driver=none
[ "$driver" != none ] || no_gpu "$(cat "$OUT/driver.txt")"
say "test programs on the $driver driver"
suite cuda_contract_test '*'
suite slot_kernels_test '*'
if [ "$driver" = fake ]; then
  suite cuda_processes_test '*'
  suite cuda_schedule_test '*-Mutants*'
else
  suite cuda_processes_test '*-*ACopyThatStandsStill*:*GetsTheMemoryBack*'
  {
    echo "- cuda_schedule_test: not run, its engine's kernels are host code, which a fake driver alone runs"
    echo "- cuda_processes_test: a stalled copy and a full device are faults that a fake driver alone makes"
  } >>"$suites"
fi

say "experiments"
status=0
timeout -k 5 $report_limit "$bin/kvd-gpu-report" --out "$OUT" --suites "$suites" || status=$?
[ "$status" -eq 0 ] || failed=1
[ -s "$OUT/gpu-report.json" ] || { echo "run.sh: no report was written" >&2; failed=1; }

say "copy matrix"
status=0
timeout -k 5 $matrix_limit "$bin/kvd-bench" copy --matrix --out "$OUT/copy-table.toml" \
  >"$OUT/copy-matrix.txt" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
  failed=1
  tail -n 3 "$OUT/copy-matrix.txt" >&2
fi

took=$(($(date +%s) - started))
if [ $failed -eq 0 ]; then say "passed; report in $OUT"; else say "FAILED; report in $OUT"; fi
[ $took -lt 540 ] || echo "run.sh: took $took s, more than its 9 minutes" >&2
exit $failed
