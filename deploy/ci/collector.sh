#!/bin/sh
# Prints the OpenTelemetry collector that the test of traces sends to. Prints nothing where there is none; the
# test is skipped then.
#
#   collector=$(sh deploy/ci/collector.sh [--fetch])
#
# --fetch builds it where it is not, from Go modules pinned in collector/go.sum, into
# ${XDG_CACHE_HOME:-~/.cache}/kvd/collector. Two to five minutes, 40 MB there. Needs Go of 1.25 or newer. Delete
# that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/collector
stamp=$fetched/.pins.sha256

fail() { printf '[collector] error: %s\n' "$*" >&2; exit 1; }
pins_hash() { cat "$here"/collector/* | sha256sum | cut -d' ' -f1; }
is_there() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ]; }

fetch() {
  printf '[collector] building the OpenTelemetry collector, two to five minutes\n' >&2
  command -v go >/dev/null || fail "no Go"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  rm -rf "$fetched"
  mkdir -p "$fetched"
  (cd "$here/collector" && go build -mod=readonly -p 2 -trimpath -ldflags '-s -w' -o "$fetched/collector" .) \
    >"$log" 2>&1 </dev/null || { tail -n 15 "$log" >&2; fail "the collector could not be built"; }
  pins_hash >"$stamp"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: collector.sh [--fetch]" ;;
esac
if [ "${1:-}" = --fetch ] && ! is_there; then
  mkdir -p "$cache"
  exec 9>"$cache/collector.lock"
  flock 9
  is_there || fetch
fi
if is_there; then printf '%s\n' "$fetched/collector"; fi
