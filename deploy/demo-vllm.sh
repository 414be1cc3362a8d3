#!/bin/sh
# The demo of vLLM on kvd: an untouched vLLM and the same one on kvd, one after the other, under the
# same load with too little memory; then the one on kvd is started again and asked the same prompts.
#
#   sh deploy/demo-vllm.sh
#
# Fetches vLLM for CPUs where there is none (0.9 GB, deploy/ci/vllm.sh), builds kvd, and makes a small
# random model. Measures first what the untouched vLLM can do on this machine, its goals and the highest
# rate at which it meets them, and asks for more than that, so that the rows differ on a fast machine, too.
# DEMO_LOAD='"rate": 4.0, …' is a load as it is instead: tests/lab/vllm/vllm_load.py.
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
  with_vllm tests/lab/vllm/vllm_load.py "$demo/model" "$demo/$1.json" "$2" \
    >"$demo/$1.log" 2>&1 || { tail -n 20 "$demo/$1.log"; fail "$1 failed; see $demo/$1.log"; }
}

lengths='"requests": 40, "prompt": [64, 256], "answer": [64, 200]'
limits='"max_model_len": 512, "max_num_seqs": 32, "max_num_batched_tokens": 256'
small="\"num_gpu_blocks_override\": 48, $limits"

# The load: more than the knee by this.
beyond=1.3
fit_load() {
  say "what an untouched vLLM can do here" >&2
  with_vllm tests/lab/vllm/vllm_benefit.py --knee "$demo/model" "$demo" \
    "{$lengths, \"blocks\": 48, \"engine\": {$limits}, \"knee_seeds\": [1], \"knee_steps\": 4}" \
    >"$demo/knee.json" || fail "the knee was not found; see $demo/untouched.log"
  "$python" -c 'import json, sys
found = json.load(open(sys.argv[1]))
found["rate"] *= float(sys.argv[2])
print(json.dumps(found)[1:-1])' "$demo/knee.json" "$beyond"
}

if [ -n "${DEMO_LOAD:-}" ]; then
  load=$DEMO_LOAD
else
  fitted=$(fit_load) || exit 1
  load="$fitted, $lengths, \"seed\": 3, \"clock\": \"cpu\", \"repeat\": 8"
fi
on_kvd='"scheduler_cls": "kvd_vllm.KvdScheduler",
  "kv_transfer_config": {"kv_connector": "KvdConnector", "kv_role": "kv_both"}'

run stock "{$load, \"engine\": {$small}}"
run kvd "{$load, \"engine\": {$small, $on_kvd}}"
run again "{$load, \"engine\": {$small, $on_kvd}}"

say "an untouched vLLM, the same on kvd, and that started again (no GPU: figures of this machine's CPU)"
"$python" tests/lab/vllm/vllm_load.py --table \
  stock="$demo/stock.json" kvd="$demo/kvd.json" "kvd again"="$demo/again.json" | tee "$demo/table.txt"
