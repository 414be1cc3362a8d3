#!/bin/sh
# A kvd on its CUDA backend and two engines that rotate through it, for a while; every byte checked.
#
#   tests/gpu/live.sh BIN-FOLDER SECONDS [small]      small: for the fake driver
#
# Prints what each engine found; exit status 0: all bytes were right and nobody died.
set -u
bin=$1
seconds=$2
# Two engines want half as much again as there is HBM, so requests rotate. All bytes of a request are
# read and checked at each of its steps, which bounds the sizes: 4 GiB a run.
hbm=32MiB dram=256MiB slab=2MiB
model="--layers 4 --bytes-per-token 1024 --requests 16 --prompt 128 --new 256"
if [ "${3:-}" = small ]; then
  hbm=4MiB dram=16MiB slab=2MiB
  model="--requests 6 --prompt 48 --new 48"
fi

work=$(mktemp -d)
daemon=
stop() {
  [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; }
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 1' INT TERM
fail() { echo "live.sh: $*"; tail -n 20 "$work/kvd.log"; exit 1; }

# Ports that nobody else is likely to use, of this run's own.
port=$((10000 + $$ % 9000)) # below those that tests take
cat >"$work/kvd.toml" <<END
backend = "cuda"
[paths]
runtime_dir = "$work"
[pool]
hbm = "$hbm"
dram = "$dram"
slab = "$slab"
reserve = "0"
[admin]
port = $port
[metrics]
port = $((port + 1))
END
"$bin/kvd" --config "$work/kvd.toml" >"$work/kvd.log" 2>&1 &
daemon=$!
tries=0
until [ -S "$work/attach.sock" ]; do
  tries=$((tries + 1))
  [ $tries -le 600 ] && kill -0 "$daemon" 2>/dev/null || fail "kvd did not start"
  sleep 0.1
done
echo "kvd started after about $((tries / 10)) s"

end=$(($(date +%s) + seconds))
# engine NAME SEED: runs after run until the time is over; a file NAME.failed where one went wrong.
engine() {
  runs=0
  while [ "$(date +%s)" -lt "$end" ]; do
    # shellcheck disable=SC2086  # a list of words
    "$bin/kvd-pattern" --endpoint "$work/attach.sock" --name "$1" --seed $(($2 + runs)) $model \
      --tbt-slo-ms 1 --ttft-slo-ms 2 --deadline 60 --json >"$work/$1.json" 2>"$work/$1.log" ||
      { echo "status $? in run $runs: $(tail -n 3 "$work/$1.log")" >"$work/$1.failed"; return; }
    runs=$((runs + 1))
  done
  echo "$runs" >"$work/$1.runs"
}
engine left 100 &
left=$!
engine right 900 &
right=$!
wait $left $right
for name in left right; do
  [ ! -f "$work/$name.failed" ] || fail "engine $name: $(cat "$work/$name.failed")"
  echo "engine $name: $(cat "$work/$name.runs") runs, the last: $(cat "$work/$name.json")"
done
kill -0 "$daemon" 2>/dev/null || fail "kvd ended by itself"
kill -TERM "$daemon"
wait "$daemon" || fail "kvd ended with status $?"
daemon=
grep -i -E 'error|lost|failed' "$work/kvd.log" && fail "kvd complained"
exit 0
