#!/bin/sh
# Makes vLLM with its Hopper kernels small enough to be carried to a machine with an H100 or H200 that
# reaches no registry: its Python, its kernels for that one architecture, and the packages that such a
# machine lacks beside CUDA 13, torch 2.11, Triton 3.6 and transformers 5.17 on Python 3.12.
#
#   tests/gpu/vllm/payload.sh [OUT]         OUT: ./vllm-payload.tar.xz, 50 MB at most; prints its path
#
# From PyPI, all pinned by hash in payload-requirements.txt, 360 MB once, into ${XDG_CACHE_HOME:-~/.cache}/kvd.
# Needs python3 with pip. Two minutes with an empty cache, a second where one was made before.
# In it lies a folder site for PYTHONPATH. Left out: kernels for other architectures, FlashAttention 2 and
# 3 but for heads of 128 in bfloat16, DeepGEMM, FlashMLA.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
out=${1:-./vllm-payload.tar.xz}
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd/gpu-payload
pins=$here/payload-requirements.txt
hash=$(cat "$pins" "$here/payload.py" "$0" | sha256sum | cut -c1-16)
made=$cache/payload-$hash.tar.xz

fail() { echo "payload.sh: $*" >&2; exit 1; }

find_pip() {
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      printf '%s\n' "$python"
      return
    fi
  done
}

# The wheels of the other machine, whatever this one is: pip takes each kind of glibc by its name.
platforms() {
  for glibc in 34 31 28 27 26 24 17; do
    printf ' --platform manylinux_2_%s_x86_64' $glibc
  done
  echo ' --platform manylinux2014_x86_64'
}

make() {
  python=$(find_pip)
  [ -n "$python" ] || fail "no python3 with pip: apt-get install python3-pip"
  echo "payload.sh: fetching the pinned vLLM and what it needs, 360 MB where nothing was fetched before" >&2
  scratch=$(mktemp -d "$cache/making.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  # shellcheck disable=SC2046 # a list of words
  "$python" -m pip download --quiet --no-input --retries 3 --no-deps --only-binary=:all: --require-hashes \
    --implementation cp --python-version 3.12 --abi cp312 --abi abi3 --abi none $(platforms) \
    --find-links "$cache/wheels" --dest "$cache/wheels" -r "$pins" >"$scratch/log" 2>&1 </dev/null ||
    { tail -n 15 "$scratch/log" >&2; fail "the wheels could not be fetched"; }
  "$python" "$here/payload.py" "$cache/wheels" "$pins" "$scratch/payload.tar.xz" >&2
  mv "$scratch/payload.tar.xz" "$made"
}

mkdir -p "$cache/wheels"
exec 9>"$cache/lock"
flock 9
[ -f "$made" ] || make
mkdir -p "$(dirname "$out")"
cp "$made" "$out.new" && mv "$out.new" "$out"
printf '%s\n' "$out"
