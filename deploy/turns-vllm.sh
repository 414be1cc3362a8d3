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

start_kvd

say "turns (no GPU: figures of this machine's CPU)"
with_vllm client_lib/examples/vllm_turns.py "$demo/model" "$demo" "$demo/out.json" "$@"
