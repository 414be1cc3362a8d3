#!/bin/bash
# Generation by llama.cpp with and without kvd: the same program, the same model, in turn, on one
# thread. Prints the CPU time of the median run of each and how they compare. On a busy machine single
# runs differ by 20 %: then ask for more rounds.
#
#   bash tests/lab/bench/llama_speed.sh [BUILD] [ROUNDS]     default build/release 15; exit 1 above 3 %
set -euo pipefail
build=${1:-build/release}
rounds=${2:-15}
work=$(mktemp -d)
daemon=

cleanup() {
  [ -z "$daemon" ] || { kill "$daemon"; wait "$daemon" || true; }
  rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "llama_speed: $*" >&2; exit 2; }

for program in kvd kvd-llama kvd-llama-model; do
  [ -x "$build/bin/$program" ] || fail "$build/bin/$program is missing: build it first"
done
"$build/bin/kvd-llama-model" --out "$work/model.gguf" --layers 8
"$build/bin/kvd" --paths.runtime_dir "$work" --pool.hbm 128MiB --pool.dram 64MiB \
  --admin.address "" --metrics.address "" >"$work/kvd.log" 2>&1 &
daemon=$!
for _ in $(seq 200); do
  [ ! -S "$work/attach.sock" ] || break
  sleep 0.05
done
[ -S "$work/attach.sock" ] || fail "kvd does not start: $(cat "$work/kvd.log")"

# CPU seconds of one run; the environment comes first.
cpu_seconds() {
  TIMEFORMAT=%U
  { time env "$@" "$build/bin/kvd-llama" --model "$work/model.gguf" --input LICENSE \
    --tokens 600 --context-size 1024 >"$work/run.log" 2>"$work/run.err"; } 2>&1 ||
    fail "$(cat "$work/run.err")"
}

for round in $(seq "$rounds"); do
  cpu_seconds -u GGML_BACKEND_PATH >>"$work/plain"
  cpu_seconds GGML_BACKEND_PATH="$build/lib/libggml-kvd.so" KVD_ENDPOINT="$work/attach.sock" \
    KVD_LLAMA_REQUIRE=1 >>"$work/kvd"
done
median() { sort -n "$1" | sed -n "$(((rounds + 1) / 2))p"; }
plain=$(median "$work/plain")
kvd=$(median "$work/kvd")
awk -v plain="$plain" -v kvd="$kvd" -v rounds="$rounds" 'BEGIN {
  slower = 100 * (kvd / plain - 1)
  printf "plain %.3f s, on kvd %.3f s of CPU time, median of %d: %+.1f %%\n", plain, kvd, rounds, slower
  exit slower > 3
}'
