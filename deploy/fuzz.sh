#!/bin/sh
# Builds the fuzz targets (tests/fuzz) by clang, with AddressSanitizer and UBSan, and runs each of them.
#
#   sh deploy/fuzz.sh [SECONDS] [TARGET…]     60 seconds each, all targets, two at a time
#
# A line a target: how often it ran, how much of the code it reached, what it found. A finding ends the
# script with 1, and its line says how to see it again. Inputs that reached new code lie in
# build/fuzz/corpus, where the next run begins, so long runs at night add up. KVD_SEED=N makes the
# choices of the run that printed N, from the same corpus.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
build=build/fuzz
results=$build/results
symptom='invariant broken|runtime error:|ERROR: (Address|Leak)Sanitizer|ERROR: libFuzzer'

# The number or name that a pattern finds last in a log.
last() { sed -n "s/$2.*/\\1/p" "$1" | tail -n 1; }

# One target, in a process of its own.
if [ "${1:-}" = --one ]; then
  log=$results/$2.log
  mkdir -p "$build/corpus/$2"
  status=0
  # What leaks is looked for once, at the end: after each input it takes most of the time.
  timeout $((FUZZ_SECONDS + 300)) "$build/fuzz/fuzz-$2" -seed="$KVD_SEED" -max_total_time="$FUZZ_SECONDS" \
    -timeout=60 -detect_leaks=0 -print_final_stats=1 -artifact_prefix="$results/$2-" "$build/corpus/$2" \
    >"$log" 2>&1 || status=$?
  line="$(last "$log" '^#\([0-9][0-9]*\)') runs, $(last "$log" '.* cov: \([0-9]*\) ') edges"
  {
    if [ "$status" -eq 0 ]; then
      printf '%-8s %s, nothing found\n' "$2" "$line"
    else
      file=$(last "$log" '.*Test unit written to \(.*\)')
      printf '%-8s %s, FOUND: %s\n' "$2" "$line" "$(grep -m 1 -E "$symptom" "$log" || tail -n 1 "$log")"
      printf '         see it again: %s/fuzz/fuzz-%s %s\n' "$build" "$2" "${file:-(no input alone: $log)}"
    fi
  } | tee -a "$results/lines"
  exit "$status"
fi

FUZZ_SECONDS=60
case "${1:-}" in
  *[!0-9]* | "") ;;
  *) FUZZ_SECONDS=$1; shift ;;
esac
KVD_SEED=${KVD_SEED:-$(($(date +%s) % 1000000 + 1))}
ASAN_OPTIONS=${ASAN_OPTIONS:-strict_string_checks=1}
UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:suppressions=$root/deploy/ci/ubsan.supp}
sh deploy/ci/install-deps.sh --fuzz
began=$(date +%s)
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --parallel 2
printf '== fuzz: built in %s s; %s s a target, KVD_SEED=%s\n' "$(($(date +%s) - began))" "$FUZZ_SECONDS" "$KVD_SEED"
# shellcheck disable=SC2046  # a list of words
[ "$#" -gt 0 ] || set -- $(cd "$build/fuzz" && ls | sed -n 's/^fuzz-//p')
rm -rf "$results"
mkdir -p "$results"
TMPDIR=$(mktemp -d)
trap 'rm -rf "$TMPDIR"' EXIT
export FUZZ_SECONDS KVD_SEED ASAN_OPTIONS UBSAN_OPTIONS TMPDIR
status=0
printf '%s\n' "$@" | xargs -P 2 -n 1 sh deploy/fuzz.sh --one || status=1
exit "$status"
