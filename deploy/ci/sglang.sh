#!/bin/sh
# Prints the Python that has SGLang, as the tests with the label sglang want it: $KVD_SGLANG_PYTHON, or the
# one fetched before. Prints nothing where there is none.
#
#   python=$(sh deploy/ci/sglang.sh [--fetch])
#
# --fetch gets one where there is none: from PyPI, all pinned by hash in sglang-requirements.txt, into
# ${XDG_CACHE_HOME:-~/.cache}/kvd/sglang, 0.4 GB to fetch, over the packages of vllm.sh, which is fetched
# before. Delete that folder to be rid of it.
#
# SGLang's kernels are for GPUs. On a CPU it needs the stand-in of tests/engines/sglang on its PYTHONPATH,
# and SGLANG_USE_CPU_ENGINE=1.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pins=$here/sglang-requirements.txt
fetched=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd/sglang
stamp=$fetched/.pins.sha256

say() { printf '[sglang] %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
pins_hash() { cat "$pins" "$here/vllm-requirements.txt" "$0" | sha256sum | cut -d' ' -f1; }

find_sglang() {
  if [ -n "${KVD_SGLANG_PYTHON:-}" ]; then
    printf '%s\n' "$KVD_SGLANG_PYTHON"
  elif [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ] && [ -x "$fetched/bin/python" ]; then
    printf '%s\n' "$fetched/bin/python"
  fi
}

fetch() {
  base=$(sh "$here/vllm.sh" --fetch)
  site=$fetched/lib/python3.11/site-packages
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  say "fetching the pinned SGLang, about 0.4 GB"
  rm -rf "$fetched"
  "$(readlink -f "$base")" -m venv --without-pip "$fetched"
  "$base" -m pip install --quiet --no-input --retries 3 --no-deps --only-binary=:all: --require-hashes \
    --target "$site" -r "$pins" >"$log" 2>&1 </dev/null ||
    { tail -n 15 "$log" >&2; fail "SGLang could not be fetched"; }
  "$base" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/vllm.pth"
  "$fetched/bin/python" -c 'import torch, sglang' >"$log" 2>&1 ||
    { tail -n 5 "$log" >&2; fail "what was fetched does not load"; }
  pins_hash >"$stamp"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: sglang.sh [--fetch]" ;;
esac
found=$(find_sglang)
if [ -z "$found" ] && [ "${1:-}" = --fetch ]; then
  mkdir -p "$(dirname "$fetched")"
  exec 9>"$fetched.lock"
  flock 9
  found=$(find_sglang)
  [ -n "$found" ] || fetch
  found=$(find_sglang)
  [ -n "$found" ] || fail "no SGLang in $fetched after fetching it"
fi
[ -z "$found" ] || printf '%s\n' "$found"
