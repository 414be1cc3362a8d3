#!/bin/sh
# A chat with vLLM that is ended and started anew before each turn: how long the first token takes on an
# untouched vLLM, which computes all that was said again, and on kvd, which has it in its DRAM.
#
#   sh deploy/turns-vllm.sh [JSON]      JSON: client_lib/examples/vllm_turns.py, DEFAULTS
#
# Needs what deploy/demo-vllm.sh needs. Prints a table; all figures are in build/turns-vllm/out.json.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
demo="$root/build/turns-vllm"
model_size=large

fail() { printf 'turns-vllm: %s\n' "$*" >&2; exit 1; }

kvd=""
stop_kvd() {
  [ -z "$kvd" ] || kill "$kvd" 2>/dev/null || true
  wait
}
trap stop_kvd EXIT
trap 'exit 130' INT TERM

. deploy/vllm-setup.sh

say "kvd"
"$root/build/release/bin/kvd" --backend host --pool.hbm 256MiB --pool.dram 512MiB \
  --paths.runtime_dir "$demo" --pool.slab 2MiB --admin.address "" --metrics.address "" \
  >"$demo/kvd.log" 2>&1 &
kvd=$!
tries=200
until [ -S "$demo/attach.sock" ]; do
  tries=$((tries - 1))
  [ "$tries" -gt 0 ] || fail "kvd did not start; see $demo/kvd.log"
  sleep 0.1
done

say "turns (no GPU: figures of this machine's CPU)"
env PYTHONPATH="$demo/packages" KVD_ENDPOINT="$demo/attach.sock" VLLM_TARGET_DEVICE=cpu \
  VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1 \
  HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
  "$python" client_lib/examples/vllm_turns.py "$demo/model" "$demo" "$demo/out.json" "$@"
