#!/bin/sh
# Prints the folder of what bench.py needs: venv/ (Mooncake Store and LMCache, on top of the vLLM for CPUs of
# deploy/ci/vllm.sh, which has their torch) and lib/ (Debian's libibverbs, which Mooncake links, unpacked).
# Prints nothing where there is none.
#
#   folder=$(sh tests/lab/bench/peers/environment.sh [--fetch])
#
# --fetch gets it where it is not: libibverbs through apt, the rest from PyPI, pinned by hash, into
# ${XDG_CACHE_HOME:-~/.cache}/kvd/peers. 70 MB to fetch beside vLLM's 0.9 GB. Needs Debian 12 and
# python3-venv. Delete that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
deploy=$here/../../../../deploy
pins=$here/requirements.txt
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/peers
stamp=$fetched/.pins.sha256

fail() { printf '[peers] error: %s\n' "$*" >&2; exit 1; }
pins_hash() { cat "$pins" "$here/environment.sh" | sha256sum | cut -d' ' -f1; }
is_there() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash) $vllm" ]; }

fetch() {
  printf '[peers] fetching Mooncake Store and LMCache, about 70 MB\n' >&2
  log=$(mktemp)
  work=$(mktemp -d)
  trap 'rm -rf "$log" "$work"' EXIT
  rm -rf "$fetched"
  mkdir -p "$fetched/lib"
  chmod 755 "$work" # apt fetches as a user of its own
  (cd "$work" && apt-get download -q libibverbs1 libnl-3-200 libnl-route-3-200) >"$log" 2>&1 </dev/null ||
    { tail -n 5 "$log" >&2; fail "apt cannot download libibverbs1: apt-get update"; }
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/unpacked"; done
  find "$work/unpacked" -name 'lib*.so.*' -exec cp -d {} "$fetched/lib" \;
  "$vllm" -m venv "$fetched/venv" >"$log" 2>&1 ||
    { cat "$log" >&2; fail "no venv: apt-get install python3-venv"; }
  "$fetched/venv/bin/python" -m pip install --quiet --no-input --retries 3 --no-deps \
    --only-binary=:all: --require-hashes -r "$pins" >"$log" 2>&1 </dev/null ||
    { tail -n 15 "$log" >&2; fail "the peers could not be fetched"; }
  "$vllm" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$fetched/venv/lib/python3.11/site-packages/vllm.pth"
  LD_LIBRARY_PATH=$fetched/lib "$fetched/venv/bin/python" -c 'import mooncake.store, lmcache' >"$log" 2>&1 ||
    { tail -n 5 "$log" >&2; fail "what was fetched does not load"; }
  printf '%s %s\n' "$(pins_hash)" "$vllm" >"$stamp"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: environment.sh [--fetch]" ;;
esac
vllm=$(sh "$deploy/ci/vllm.sh" ${1:+"$1"})
[ -n "$vllm" ] || exit 0
if [ "${1:-}" = --fetch ] && ! is_there; then
  mkdir -p "$cache"
  exec 9>"$cache/peers.lock"
  flock 9
  is_there || fetch
fi
if is_there; then printf '%s\n' "$fetched"; fi
