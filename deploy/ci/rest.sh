#!/bin/sh
# Prints the Python that the tests with the label rest want: one with schemathesis, which tries the admin
# interface by its own description. Prints nothing where there is none.
#
#   python=$(sh deploy/ci/rest.sh [--fetch])
#
# --fetch gets it where it is not: from PyPI, pinned by hash, into ${XDG_CACHE_HOME:-~/.cache}/kvd/rest. 20 MB
# to fetch, half a minute. Needs Debian 12 and python3-venv. Delete that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pins=$here/rest-requirements.txt
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/rest
stamp=$fetched/.pins.sha256

fail() { printf '[rest] error: %s\n' "$*" >&2; exit 1; }
pins_hash() { sha256sum <"$pins" | cut -d' ' -f1; }
is_there() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ]; }

fetch() {
  printf '[rest] fetching schemathesis, about 20 MB\n' >&2
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  rm -rf "$fetched"
  /usr/bin/python3 -m venv "$fetched" >"$log" 2>&1 ||
    { cat "$log" >&2; fail "no venv: apt-get install python3-venv"; }
  "$fetched/bin/python" -m pip install --quiet --no-input --retries 3 --no-deps \
    --only-binary=:all: --require-hashes -r "$pins" >"$log" 2>&1 </dev/null ||
    { tail -n 15 "$log" >&2; fail "schemathesis could not be fetched"; }
  pins_hash >"$stamp"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: rest.sh [--fetch]" ;;
esac
if [ "${1:-}" = --fetch ] && ! is_there; then
  mkdir -p "$cache"
  exec 9>"$cache/rest.lock"
  flock 9
  is_there || fetch
fi
if is_there; then printf '%s\n' "$fetched/bin/python"; fi
