#!/bin/sh
# Chat with a goal of 5 s beside a batch with one of 600 s, each an engine of its own on one kvd: what the
# time to chat's first token suffers (tests/lab/vllm/two_classes.py says how it is measured).
#
#   sh deploy/bench-two-classes.sh [--json] [--rounds N]          two kvd-engines: five minutes
#   sh deploy/bench-two-classes.sh --vllm [--json] [--rounds N]   two vLLMs with elastic KV caches: ten more
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
demo="$root/build/bench-two-classes"
model_size=small
if [ "${1:-}" = --vllm ]; then
  shift
  . deploy/vllm-setup.sh >&2
  with_vllm tests/lab/vllm/two_classes.py "$root/build/release/bin" "$demo" --model "$demo/model" "$@"
else
  sh deploy/ci/install-deps.sh >/dev/null
  cmake --preset release >/dev/null
  cmake --build --preset release --parallel 2 --target kvd kvd-engine >/dev/null
  mkdir -p "$demo"
  python3 tests/lab/vllm/two_classes.py "$root/build/release/bin" "$demo" "$@"
fi
