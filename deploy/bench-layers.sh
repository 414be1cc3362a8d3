#!/bin/sh
# What streaming layers is worth to vLLM where single requests are large: stock vLLM, rotation, the same layers
# of all requests, and the layers that kvd plans, on one load (tests/lab/vllm/vllm_layers.py).
#
#   sh deploy/bench-layers.sh [JSON]      JSON: tests/lab/vllm/vllm_layers.py, DEFAULTS
#
# Needs what deploy/demo-vllm.sh needs. Prints a table; all figures are in build/bench-layers/out.json.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
demo="$root/build/bench-layers"
model_size=deep
. deploy/vllm-setup.sh

say "loads"
export BENCH_KVD="$root/build/release/bin/kvd"
with_vllm tests/lab/vllm/vllm_layers.py "$demo/model" "$demo" "$demo/out.json" "$@" | tee "$demo/table.txt"
