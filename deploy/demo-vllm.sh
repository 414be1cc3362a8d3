#!/bin/sh
# The demo of vLLM on kvd: an untouched vLLM and the same one on kvd, one after the other, under the
# same load with too little memory; then the one on kvd is started again and asked the same prompts.
#
#   sh deploy/demo-vllm.sh
#
# Fetches vLLM for CPUs where there is none (0.9 GB, deploy/ci/vllm.sh), builds kvd, and makes a small
# random model. DEMO_LOAD='{"rate": 4.0, …}' changes the load: client_lib/examples/vllm_load.py.
# Prints a table; what was measured and every log is in build/demo-vllm.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
demo="$root/build/demo-vllm"
model_size=small

fail() { printf 'demo-vllm: %s\n' "$*" >&2; exit 1; }

children=""
stop_children() {
  for child in $children; do
    kill "$child" 2>/dev/null || true
  done
  wait
}
trap stop_children EXIT
trap 'exit 130' INT TERM

. deploy/vllm-setup.sh

start_kvd
children="$children $kvd"

# run NAME JSON: one engine under load; its answers and figures in $demo/NAME.json
run() {
  say "$1"
  with_vllm client_lib/examples/vllm_load.py "$demo/model" "$demo/$1.json" "$2" \
    >"$demo/$1.log" 2>&1 || { tail -n 20 "$demo/$1.log"; fail "$1 failed; see $demo/$1.log"; }
}

load='"rate": 5.0, "requests": 40, "seed": 3, "prompt": [64, 256], "answer": [64, 200],
  "ttft_s": 0.5, "tbt_s": 0.02, "clock": "cpu", "repeat": 8'
load=${DEMO_LOAD:-$load}
small='"num_gpu_blocks_override": 48, "max_model_len": 512, "max_num_seqs": 32, "max_num_batched_tokens": 256'
on_kvd='"scheduler_cls": "kvd_vllm.KvdScheduler",
  "kv_transfer_config": {"kv_connector": "KvdConnector", "kv_role": "kv_both"}'

run stock "{$load, \"engine\": {$small}}"
run kvd "{$load, \"engine\": {$small, $on_kvd}}"
run again "{$load, \"engine\": {$small, $on_kvd}}"

say "an untouched vLLM, the same on kvd, and that started again (no GPU: figures of this machine's CPU)"
"$python" client_lib/examples/vllm_load.py --table \
  stock="$demo/stock.json" kvd="$demo/kvd.json" "kvd again"="$demo/again.json" | tee "$demo/table.txt"
