# shellcheck shell=sh
# What rest.sh, routers.sh and release.sh share: one Python environment in the cache, of what NAME-requirements.txt pins by
# hash, and anew once that file changes. Sourced with $here, the folder of the scripts, and $0 for usage.
#
#   environment NAME WHAT SIZE [--fetch]   prints the folder of the environment, or nothing where there is none
#
# --fetch gets it where it is not, through pip, into ${XDG_CACHE_HOME:-~/.cache}/kvd/NAME. One at a time.

environment() {
  name=$1 what=$2 size=$3
  pins=$here/$name-requirements.txt
  cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
  fetched=$cache/$name
  stamp=$fetched/.pins.sha256
  case "${4:-}" in
    "" | --fetch) ;;
    *) fail "usage: $name.sh [--fetch]" ;;
  esac
  if [ "${4:-}" = --fetch ] && ! is_there; then
    mkdir -p "$cache"
    exec 9>"$cache/$name.lock"
    flock 9
    is_there || fetch
  fi
  if is_there; then printf '%s\n' "$fetched"; fi
}

fail() { printf '[%s] error: %s\n' "$name" "$*" >&2; exit 1; }
pins_hash() { sha256sum <"$pins" | cut -d' ' -f1; }
is_there() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ]; }

fetch() {
  printf '[%s] fetching %s, about %s\n' "$name" "$what" "$size" >&2
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  rm -rf "$fetched"
  /usr/bin/python3 -m venv "$fetched" >"$log" 2>&1 ||
    { cat "$log" >&2; fail "no venv: apt-get install python3-venv"; }
  "$fetched/bin/python" -m pip install --quiet --no-input --retries 3 --no-deps \
    --only-binary=:all: --require-hashes -r "$pins" >"$log" 2>&1 </dev/null ||
    { tail -n 15 "$log" >&2; fail "$what could not be fetched"; }
  pins_hash >"$stamp"
}
