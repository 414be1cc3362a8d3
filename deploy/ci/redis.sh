#!/bin/sh
# Prints the folder of Debian's Redis, and of its nft to lose packets with, unpacked for the tests of the remote
# tier: nothing is installed, no service starts. Prints nothing where there is none; those tests are skipped then.
#
#   folder=$(sh deploy/ci/redis.sh [--fetch])
#
# --fetch gets it through apt where it is not, into ${XDG_CACHE_HOME:-~/.cache}/kvd/redis. 3 MB to fetch, 12 MB
# there. Needs Debian 12. Delete that folder to be rid of it.
set -eu

PACKAGES="redis-server redis-tools libjemalloc2 liblzf1 liblua5.1-0 lua-cjson lua-bitop libhiredis0.14 libatomic1
  nftables libnftables1 libnftnl11 libmnl0 libjansson4 libedit2 libbsd0 libxtables12 libgmp10"
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/redis

fail() { printf '[redis] error: %s\n' "$*" >&2; exit 1; }
is_there() { [ "$(cat "$fetched/.complete" 2>/dev/null)" = "$PACKAGES" ]; }

download() {
  # shellcheck disable=SC2086  # a list of words
  (cd "$1" && apt-get download -q $PACKAGES) >"$log" 2>&1 </dev/null
}

fetch() {
  printf '[redis] fetching Redis and nft, about 3 MB\n' >&2
  log=$(mktemp)
  work=$(mktemp -d)
  trap 'rm -rf "$log" "$work"' EXIT
  rm -rf "$fetched"
  mkdir -p "$fetched"
  chmod 755 "$work" # apt fetches as a user of its own
  download "$work" || { apt-get update -q >"$log" 2>&1 </dev/null && download "$work"; } ||
    { tail -n 5 "$log" >&2; fail "apt cannot download Redis: apt-get update"; }
  for package in "$work"/*.deb; do dpkg -x "$package" "$fetched"; done
  printf '%s\n' "$PACKAGES" >"$fetched/.complete"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: redis.sh [--fetch]" ;;
esac
if [ "${1:-}" = --fetch ] && ! is_there; then
  mkdir -p "$cache"
  exec 9>"$cache/redis.lock"
  flock 9
  is_there || fetch
fi
if is_there; then printf '%s\n' "$fetched"; fi
