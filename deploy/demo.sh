#!/bin/sh
# The demo: builds kvd, starts it on the host backend, and runs two unmodified llama.cpp engines on
# its memory beside two rotating clients. One engine is killed half-way and started again.
#
#   sh deploy/demo.sh
#   sh deploy/demo.sh --benefit   what one kvd is worth: the same requests at two engines that have
#                                 half of the memory each, and on one kvd; two minutes beside the build
#
# DEMO_MODEL=/path/to.gguf   a model of yours instead of a small random one
# Writes build/demo/summary.json and leaves every log in build/demo. --benefit adds `benefit` to the
# summary of an earlier demo, and build/demo/benefit.svg.
set -eu

case "${1:-}" in
  "" | --benefit) ;;
  *) echo "usage: sh deploy/demo.sh [--benefit]" >&2; exit 2 ;;
esac

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
demo="$root/build/demo"
# The build of a machine that works on kvd, else one that is made sooner.
preset=quick
[ ! -x "$root/build/release/bin/kvd" ] || preset=release
bin="$root/build/$preset/bin"
lib="$root/build/$preset/lib"
jobs=$(nproc)
[ "$jobs" -le 2 ] || jobs=2

tokens=384       # each engine generates
context=4096     # tokens an engine's KV cache holds
prompt=64

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

# --- children: every process we start is in $children and ends with us ---------------------------
children=""
start() { # start LOG COMMAND…: starts it in the background and leaves its pid in $started
  log=$1
  shift
  "$@" >"$log" 2>&1 &
  started=$!
  children="$children $started"
}
stop_children() {
  for child in $children; do
    kill "$child" 2>/dev/null || true
  done
  wait
}
trap stop_children EXIT
trap 'exit 130' INT TERM

# wait_for SECONDS WHAT COMMAND…: polls the command until it succeeds.
wait_for() {
  tries=$(($1 * 10))
  what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "$what did not happen in time; see the logs in $demo"
    sleep 0.1
  done
}

rest() { curl -s -m 5 "http://127.0.0.1:$admin_port$1"; }
free_port() { # the first from $1 on where nobody listens
  port=$1
  while curl -s -m 1 -o /dev/null "http://127.0.0.1:$port/" 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}

build() { # build TARGET…
  say "build"
  cmake --preset "$preset" >"$root/build-demo.log" 2>&1 || { cat "$root/build-demo.log"; fail "configure"; }
  rm -f "$root/build-demo.log"
  cmake --build --preset "$preset" --parallel "$jobs" --target "$@"
}

# --- what one kvd is worth ------------------------------------------------------------------------
benefit() {
  say "dependencies"
  sh deploy/ci/install-deps.sh
  build kvd kvd-admin kvd-engine kvd-bench
  mkdir -p "$demo"
  say "the same requests at two engines: on halves of the memory, and on one kvd"
  status=0
  "$bin/kvd-bench" benefit --out "$demo" >"$demo/benefit.txt" || status=$?
  [ "$status" -le 1 ] || fail "kvd-bench benefit did not run to its end"
  printf '\n'
  cat "$demo/benefit.txt"
  [ -s "$demo/summary.json" ] || echo '{}' >"$demo/summary.json"
  jq --slurpfile benefit "$demo/benefit.json" '.benefit = $benefit[0]' "$demo/summary.json" >"$demo/summary.new"
  mv "$demo/summary.new" "$demo/summary.json"
  jq -r '.benefit | "  one kvd: \(.more_within_slo_mean) requests more within their SLO on the mean of \(.seeds) seeds, " +
    (if .never_fewer then "never fewer" else "but fewer with some seed" end)' "$demo/summary.json"
  cat <<'END'

  On which ground: the bursts of the two engines come in turn. A half is too small for a burst, while
  the other half stands idle; one kvd lends the busy engine what the other does not use. Where both
  are busy at the same time there is nothing to lend. Try it: kvd-bench benefit --help, --quiet-rate.
  Daemons, engines and copies are real, on host memory. An iteration takes 5 ms at least, as on a GPU,
  where many requests take hardly longer than one (longer on a slow machine: the table says so); each
  half has a whole link for itself.
END
  say "where to look: $demo/benefit.svg, and benefit in $demo/summary.json"
  [ "$status" -eq 0 ] || fail "with some seed one kvd had fewer requests within their SLO than the halves$(
    jq -r 'if .machine_was_busy then ": the machine was too busy to tell, run it again on two idle cores" else "" end' \
      "$demo/benefit.json")"
}
if [ "${1:-}" = --benefit ]; then
  benefit
  exit 0
fi

# --- build ----------------------------------------------------------------------------------------
say "dependencies"
KVD_REQUIRE="${KVD_REQUIRE:-llama}" sh deploy/ci/install-deps.sh
build kvd kvd-admin kvdctl kvd-pattern ggml-kvd kvd-llama kvd-llama-model \
  kvd-llama-compare kvd-zero-pool kvd-crash-probe

rm -rf "$demo"
mkdir -p "$demo/run"
chmod 755 "$demo/run"
export GGML_NO_BACKTRACE=1

# --- the daemon -----------------------------------------------------------------------------------
say "start kvd: 96 MiB HBM pool, 256 MiB DRAM pool, host backend"
admin_port=$(free_port 8470)
metrics_port=$(free_port 9470)
[ "$metrics_port" -ne "$admin_port" ] || metrics_port=$((metrics_port + 1))
start "$demo/kvd.log" "$bin/kvd" --backend host --paths.runtime_dir "$demo/run" \
  --pool.hbm 96MiB --pool.dram 256MiB --pool.slab 2MiB --rotation.b_xfer 8MiB \
  --admin.port "$admin_port" --metrics.port "$metrics_port"
kvd_pid=$started
wait_for 30 "the start of kvd" rest /readyz
sed 's/^/  /' "$demo/kvd.log"
export KVD_ENDPOINT="$demo/run/attach.sock"

# --- the model, and what the engines say without kvd -----------------------------------------------
model=${DEMO_MODEL:-}
if [ -z "$model" ]; then
  say "make a small model with random weights"
  model="$demo/model.gguf"
  "$bin/kvd-llama-model" --out "$model" | sed 's/^/  /'
fi
input_a="$root/README.md"
input_b="$root/LICENSE"

# engine NAME INPUT …: the arguments of one llama.cpp engine, the same with and without kvd
engine() {
  name=$1
  input=$2
  shift 2
  "$bin/kvd-llama" --model "$model" --input "$input" --tokens "$tokens" --prompt-tokens "$prompt" \
    --context-size "$context" --logits-out "$demo/$name.logits" "$@"
}
on_kvd() { GGML_BACKEND_PATH="$lib/libggml-kvd.so" KVD_LLAMA_REQUIRE=1 engine "$@"; }

say "reference: both engines once on their own memory"
engine plain-a "$input_a" >"$demo/plain-a.log" 2>&1 || fail "llama.cpp does not run; see $demo/plain-a.log"
engine plain-b "$input_b" >"$demo/plain-b.log" 2>&1 || fail "llama.cpp does not run; see $demo/plain-b.log"
tail -qn 1 "$demo/plain-a.log" "$demo/plain-b.log" | sed 's/^/  /'

say "control: an engine whose pool is zeroed once must fail the comparison"
start "$demo/control.log" on_kvd control "$input_a" --pause-at $((tokens / 2))
control=$started
wait_for 60 "the pause of the control run" grep -q '"event":"paused"' "$demo/control.log"
control_pid=$(sed -n 's/.*"event":"paused","pid":\([0-9]*\).*/\1/p' "$demo/control.log" | head -n 1)
"$bin/kvd-zero-pool" --pid "$control_pid" | sed 's/^/  /'
kill -USR1 "$control_pid"
wait "$control" || true
if "$bin/kvd-llama-compare" "$demo/plain-a.logits" "$demo/control.logits" >"$demo/control.json"; then
  corruption_control_failed=false
else
  corruption_control_failed=true
fi
printf '  rejected as it must be: %s\n' "$corruption_control_failed"

# --- everything at once -----------------------------------------------------------------------------
say "two llama.cpp engines and two rotating clients on one pool"
pattern() { # pattern NAME SEED
  "$bin/kvd-pattern" --name "$1" --seed "$2" --requests 96 --prompt 160 --new 128 --layers 8 \
    --bytes-per-token 1024 --step-ms 20 --deadline 120 --json
}
start "$demo/a.log" on_kvd a "$input_a" --step-ms 25
shell_a=$started
start "$demo/b.log" on_kvd b "$input_b" --step-ms 25
shell_b=$started
start "$demo/pattern-1.json" pattern pattern-1 1
pattern_1=$started
start "$demo/pattern-2.json" pattern pattern-2 2
pattern_2=$started

engine_pid() { sed -n 's/.*"event":"ready","pid":\([0-9]*\).*/\1/p' "$demo/$1.log" | head -n 1; }
made() { sed -n 's/.*"tokens":\([0-9]*\),"total".*/\1/p' "$demo/$1.log" | tail -n 1; }
wait_for 30 "the attach of engine a" grep -q '"event":"ready"' "$demo/a.log"
wait_for 30 "the attach of engine b" grep -q '"event":"ready"' "$demo/b.log"

# bytes the daemon says it serves to a process, and what the kernel says the process maps of it
bytes_served() { rest /v1/engines | jq "[.engines[] | select(.pid == $1) | .region_bytes] | add // 0"; }
bytes_mapped() {
  awk '/^[0-9a-f]+-[0-9a-f]+ / { ours = /memfd:kvd-hbm/ } ours && /^Size:/ { sum += $2 } END { print sum * 1024 }' \
    "/proc/$1/smaps"
}
pid_a=$(engine_pid a)
pid_b=$(engine_pid b)
served_a=$(bytes_served "$pid_a")
served_b=$(bytes_served "$pid_b")
mapped_a=$(bytes_mapped "$pid_a")
mapped_b=$(bytes_mapped "$pid_b")

table_head() { printf '  %6s  %9s %9s  %8s %8s  %9s %9s %9s\n' "time" "engine a" "engine b" "hbm free" "region" "running" "rotary" "rotations"; }
table_row() {
  rest /v1/status >"$demo/status.json"
  jq -r --arg time "$(($(date +%s) - began)) s" --arg a "$(made a)" --arg b "$(made b)" '
    [$time, $a, $b,
     (.pools[0].free_bytes / 1048576 | floor | tostring) + " MiB",
     (.pools[0].region_bytes / 1048576 | floor | tostring) + " MiB",
     .requests.running, .requests.rotary, .counters.rotations_out] | @tsv' "$demo/status.json" |
    awk -F '\t' '{ printf "  %6s  %9s %9s  %8s %8s  %9s %9s %9s\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
}
alive() { kill -0 "$1" 2>/dev/null; }

began=$(date +%s)
table_head
killed=false
while alive "$shell_a" || alive "$shell_b" || alive "$pattern_1" || alive "$pattern_2"; do
  table_row
  if [ "$killed" = false ] && [ "$(made a)" -ge $((tokens / 2)) ]; then
    killed=true
    printf '  ------  engine a (pid %s) gets SIGKILL with %s bytes of kvd memory\n' "$pid_a" "$served_a"
    "$bin/kvd-crash-probe" --pid "$pid_a" --admin-port "$admin_port" \
      >"$demo/crash.json" || fail "the memory of the killed engine did not come back"
    wait "$shell_a" 2>/dev/null || true
    printf '  ------  %s\n' "$(cat "$demo/crash.json")"
    table_row
    printf '  ------  engine a starts again\n'
    start "$demo/a.log" on_kvd a "$input_a" --step-ms 5
    shell_a=$started
    sleep 0.5
  fi
  sleep 1
done
table_row
[ "$killed" = true ] || fail "engine a ended before it could be killed"
wait "$shell_a" || fail "engine a failed; see $demo/a.log"
wait "$shell_b" || fail "engine b failed; see $demo/b.log"
wait "$pattern_1" || fail "pattern-1 failed; see $demo/pattern-1.json"
wait "$pattern_2" || fail "pattern-2 failed; see $demo/pattern-2.json"

# --- what came of it --------------------------------------------------------------------------------
same() { "$bin/kvd-llama-compare" "$demo/plain-$1.logits" "$demo/$1.logits" >"$demo/compare-$1.json" && echo true || echo false; }
same_a=$(same a)
same_b=$(same b)
rest /v1/status >"$demo/status.json"
jq -n --slurpfile status "$demo/status.json" --slurpfile crash "$demo/crash.json" \
  --slurpfile p1 "$demo/pattern-1.json" --slurpfile p2 "$demo/pattern-2.json" \
  --argjson tokens "$tokens" --argjson same_a "$same_a" --argjson same_b "$same_b" \
  --argjson control "$corruption_control_failed" \
  --argjson served "[$served_a, $served_b]" --argjson mapped "[$mapped_a, $mapped_b]" '{
    engines: 2,
    tokens: [$tokens, $tokens],
    bytes_served: $served,
    mapped_bytes_smaps: $mapped,
    logits_identical: [$same_a, $same_b],
    corruption_control_failed: $control,
    rotations: $status[0].counters.rotations_out,
    pattern_bytes_checked: ($p1[0].bytes_checked + $p2[0].bytes_checked),
    pattern_errors: ($p1[0].pattern_errors + $p2[0].pattern_errors),
    crash_reclaim_ms: $crash[0].reclaim_ms,
    crash_reclaim_floor_ms: $crash[0].floor_ms,
    crash_notice_ms: $crash[0].notice_ms
  }' >"$demo/summary.json"

kill "$kvd_pid"
wait "$kvd_pid" || fail "kvd did not end in order; see $demo/kvd.log"

say "what happened"
cat <<END
  Two unmodified llama.cpp processes kept their KV caches in memory that kvd owns, and gave bit for
  bit the logits they give on their own memory. The same comparison rejected a run whose pool was
  zeroed once. Two clients with more requests than the pool holds were rotated between HBM and DRAM
  and checked every block they read. One engine was killed; its memory came back and was used again.

END
cat "$demo/summary.json"
say "where to look: $demo/summary.json, kvd.log and the logs beside it"

jq -e '(.logits_identical | all) and .corruption_control_failed and .rotations > 0 and
  .pattern_errors == 0 and
  ([.bytes_served, .mapped_bytes_smaps] | transpose | map(.[0] > 0 and (.[0] - .[1] | fabs) <= 4096) | all)' \
  "$demo/summary.json" >/dev/null || fail "the summary shows a failure"
