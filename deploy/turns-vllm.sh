#!/bin/sh
# A chat with vLLM that is ended and started anew before each turn: how long the first token takes on an
# untouched vLLM, which computes all that was said again, and on kvd, which has it in its DRAM.
#
#   sh deploy/turns-vllm.sh [JSON]      JSON: tests/lab/vllm/vllm_turns.py, DEFAULTS
#   sh deploy/turns-vllm.sh '{"beside": ["mooncake", "lmcache"], "streams": 8}'
#
# With "beside", Mooncake Store and LMCache take part behind vLLM's own connectors. They are fetched
# (tests/lab/bench/peers/environment.sh), and all engines run where there is only the loopback device.
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

case "${1:-}" in
  *'"beside"'*)
    say "Mooncake Store and LMCache"
    peers=$(sh tests/lab/bench/peers/environment.sh --fetch)
    [ -n "$peers" ] || fail "the peers are not there"
    python="$peers/venv/bin/python"
    packages="$root/tests/lab/bench/peers"
    within="sh $root/tests/lab/bench/peers/isolated.sh"
    export LD_LIBRARY_PATH="$peers/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" VLLM_HOST_IP=127.0.0.1
    ;;
esac

start_kvd

say "turns (no GPU: figures of this machine's CPU)"
with_vllm tests/lab/vllm/vllm_turns.py "$demo/model" "$demo" "$demo/out.json" "$@"
