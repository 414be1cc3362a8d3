#!/bin/sh
# Prints the folder of prebuilt llama.cpp, one a version of ggml (llama-versions.txt), for the tests that run the
# plug-in in each of them: VERSION/llama_cpp_py_sync has the libraries and how Python calls them. Prints nothing
# where they are not fetched; those tests are skipped then.
#
#   folder=$(sh deploy/ci/llama-versions.sh [--fetch])
#
# --fetch gets them from PyPI where they are not there, into ${XDG_CACHE_HOME:-~/.cache}/kvd/llama-versions. 50 MB
# to fetch, 150 MB there. They want the C library of Debian 13: under an older one it is fetched through apt, and
# `FOLDER/python` runs Python's program with it. Delete that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/llama-versions

say() { printf '[llama-versions] %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
pins_hash() { cat "$here/llama-versions.txt" "$0" | sha256sum | cut -d' ' -f1; }
is_there() { [ "$(cat "$fetched/.complete" 2>/dev/null)" = "$(pins_hash)" ]; }
download() { # PIN FOLDER
  printf '%s\n' "$1" >"$work/pin"
  python3 -m pip download --quiet --no-input --retries 3 --no-deps --only-binary=:all: --require-hashes \
    -r "$work/pin" -d "$2" </dev/null || fail "$1 could not be fetched"
}

# Debian 13's C and C++ libraries, unpacked: nothing is installed.
newer_libraries() {
  lists=$work/apt
  mkdir -p "$lists/lists/partial" "$lists/archives/partial"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' \
    http://deb.debian.org/debian >"$lists/sources"
  set -- -q -o Dir::Etc::sourcelist="$lists/sources" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$lists/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$lists" \
    -o APT::Sandbox::User=root
  (cd "$lists" && apt-get "$@" update && apt-get "$@" download libc6 libstdc++6 libgcc-s1) >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" >&2; fail "apt cannot download Debian 13's C library"; }
  for package in "$lists"/*.deb; do dpkg -x "$package" "$fetched/debian13"; done
}

fetch() {
  say "fetching llama.cpp of nine versions, 50 MB"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  rm -rf "$fetched"
  mkdir -p "$fetched"
  sed -n '/^[0-9]/p' "$here/llama-versions.txt" >"$work/versions"
  while read -r version pin; do
    download "$pin" "$work/$version"
    python3 -m zipfile -e "$work/$version"/*.whl "$fetched/$version"
  done <"$work/versions"
  sed -n 's/^cffi //p' "$here/llama-versions.txt" >"$work/cffi"
  python3 -m pip install --quiet --no-input --no-deps --only-binary=:all: --require-hashes \
    --target "$fetched/cffi" -r "$work/cffi" </dev/null || fail "cffi could not be fetched"
  program=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
  if [ "$(python3 -c 'import os; print(os.confstr("CS_GNU_LIBC_VERSION").split()[1] < "2.38")')" = True ]; then
    newer_libraries
    libraries=$fetched/debian13/usr/lib/$(uname -m)-linux-gnu
    program="$libraries/ld-linux-x86-64.so.2 --library-path $libraries $program"
  fi
  printf '#!/bin/sh\nexec %s "$@"\n' "$program" >"$fetched/python"
  chmod 755 "$fetched/python"
  pins_hash >"$fetched/.complete"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: llama-versions.sh [--fetch]" ;;
esac
if [ "${1:-}" = --fetch ] && ! is_there; then
  mkdir -p "$cache"
  exec 9>"$cache/llama-versions.lock"
  flock 9
  is_there || fetch
fi
if is_there; then printf '%s\n' "$fetched"; fi
