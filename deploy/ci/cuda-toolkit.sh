#!/bin/sh
# Prints the folder of the CUDA toolkit to build with, 13.0 or newer: $CUDA_HOME, the one whose nvcc is
# on PATH, /usr/local/cuda, or the one fetched before. Prints nothing where there is none.
#
#   CUDA_HOME=$(sh deploy/ci/cuda-toolkit.sh [--fetch])
#
# --fetch gets one where there is none: compiler and headers from PyPI, pinned in
# cuda-requirements.txt, about 100 MB, into ${XDG_CACHE_HOME:-~/.cache}/kvd/cuda-toolkit. Needs
# python3 with pip, no virtual environment and no root. Delete that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pins=$here/cuda-requirements.txt
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/cuda-toolkit
stamp=$fetched/.pins.sha256

say() { printf '[cuda] %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
pins_hash() { sha256sum "$pins" | cut -d' ' -f1; }

# Whether the folder holds an nvcc of 13 or newer and the headers of the driver's interface.
is_toolkit() {
  [ -n "$1" ] && [ -x "$1/bin/nvcc" ] && [ -f "$1/include/cudaTypedefs.h" ] || return 1
  release=$("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  [ "${release:-0}" -ge 13 ]
}

find_toolkit() {
  on_path=$(command -v nvcc || true)
  [ -z "$on_path" ] || on_path=$(dirname "$(dirname "$(readlink -f "$on_path")")")
  for folder in "${CUDA_HOME:-}" "$on_path" /usr/local/cuda; do
    if is_toolkit "$folder"; then
      printf '%s\n' "$folder"
      return
    fi
  done
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ] && is_toolkit "$fetched/nvidia/cu13"; then
    printf '%s\n' "$fetched/nvidia/cu13"
  fi
}

find_pip() {
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      printf '%s\n' "$python"
      return
    fi
  done
}

# Whole or not at all, also where two clones fetch at the same time: a rename puts it in place.
fetch() {
  python=$(find_pip)
  [ -n "$python" ] || fail "no python3 with pip to fetch the CUDA compiler with: install python3" \
    "and python3-pip, as KVD_REQUIRE=cuda sh deploy/ci/install-deps.sh does, or set CUDA_HOME to a" \
    "toolkit of 13.0 or newer"
  mkdir -p "$cache"
  scratch=$(mktemp -d "$cache/cuda-toolkit.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  say "fetching the pinned CUDA compiler and headers, about 100 MB"
  "$python" -m pip install --quiet --no-input --retries 3 --no-compile --no-deps --only-binary=:all: \
    --require-hashes --target "$scratch/toolkit" -r "$pins" >"$scratch/log" 2>&1 </dev/null ||
    { tail -n 15 "$scratch/log" >&2; fail "the CUDA compiler could not be fetched"; }
  is_toolkit "$scratch/toolkit/nvidia/cu13" || fail "what was fetched holds no nvcc of release 13"
  pins_hash >"$scratch/toolkit/.pins.sha256"
  [ ! -e "$fetched" ] || mv "$fetched" "$scratch/old"
  mv -T "$scratch/toolkit" "$fetched" || say "another run put it there meanwhile"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: cuda-toolkit.sh [--fetch]" ;;
esac
folder=$(find_toolkit)
if [ -z "$folder" ] && [ "${1:-}" = --fetch ]; then
  fetch
  folder=$(find_toolkit)
  [ -n "$folder" ] || fail "no toolkit in $fetched after fetching it"
fi
[ -z "$folder" ] || printf '%s\n' "$folder"
