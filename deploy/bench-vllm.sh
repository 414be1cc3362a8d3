#!/bin/sh
# What kvd's scheduling is worth to vLLM, and what it costs: an untouched vLLM and the same one on kvd
# (policies lvf and unified) under the same loads, at shares of the knee that is measured before.
#
#   sh deploy/bench-vllm.sh [JSON]      JSON: tests/lab/vllm/vllm_benefit.py, DEFAULTS
#   BENCH_MODEL=small sh deploy/bench-vllm.sh '{"prompt": [64, 256], "answer": [64, 200], "blocks": 48,
#     "engine": {"max_model_len": 512, "max_num_seqs": 32, "max_num_batched_tokens": 256,
#                "kv_cache_memory_bytes": 33554432}}'
#
# Half an hour on two idle cores; the small model (4 M parameters instead of 21 M) takes a third.
# Needs what deploy/demo-vllm.sh needs. Prints a table; all figures are in build/bench-vllm/out.json,
# its row schedule_added among them.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
demo="$root/build/bench-vllm"
model_size=${BENCH_MODEL:-large}
. deploy/vllm-setup.sh

say "loads"
export BENCH_KVD="$root/build/release/bin/kvd"
with_vllm tests/lab/vllm/vllm_benefit.py "$demo/model" "$demo" "$demo/out.json" "$@" \
  | tee "$demo/table.txt"
