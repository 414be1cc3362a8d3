#!/bin/sh
# Whether what payload.sh packs loads on the GPU machine, as far as that shows without a GPU: in an
# environment with that machine's torch and packages, CUDA's libraries replaced by stubs, vLLM's operators
# are registered and the modules of its GPU side are imported out of the payload. Nightly.
#
#   tests/gpu/vllm/gate.sh            needs Python 3.12 (KVD_PYTHON312 names one), gcc and readelf
#
# Fetches 0.9 GB once, pinned by hash in gate-requirements.txt, into ${XDG_CACHE_HOME:-~/.cache}/kvd.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../../.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd/gpu-gate
pins=$here/gate-requirements.txt
fail() { echo "gate.sh: $*" >&2; exit 1; }

find_python() {
  for python in ${KVD_PYTHON312:-} python3.12 /usr/bin/python3.12 "${HOME:-}"/.pyenv/versions/3.12*/bin/python; do
    if "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
}

python=$(find_python)
if [ -z "$python" ]; then
  printf 'gpu.vllm_payload: Skipped\nno Python 3.12 with venv, which the GPU machine has: KVD_PYTHON312 names one\n'
  exit 0
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
sh "$here/payload.sh" "$cache/payload.tar.xz" >/dev/null
rm -rf "$cache/site"
tar -C "$cache" -xf "$cache/payload.tar.xz"

stamp=$(sha256sum "$pins" | cut -d' ' -f1)
if [ "$(cat "$cache/venv/.pins" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$cache/venv"
  "$python" -m venv "$cache/venv"
  "$cache/venv/bin/python" -m pip install --quiet --no-input --retries 3 --no-deps --only-binary=:all: \
    --require-hashes -r "$pins" >"$cache/log" 2>&1 </dev/null ||
    { tail -n 15 "$cache/log" >&2; fail "the machine's packages could not be fetched"; }
  echo "$stamp" >"$cache/venv/.pins"
fi
packages=$cache/venv/lib/python3.12/site-packages
# shellcheck disable=SC2046 # names without spaces
PYTHONPATH=$root/deploy/ci "$python" "$here/gate_stubs.py" "$packages" $(find "$cache/site/vllm" -name '*.so') >"$cache/log" 2>&1 ||
  { cat "$cache/log" >&2; fail "the stubs do not build"; }
LD_LIBRARY_PATH=$packages/nvidia/cu13/lib PYTHONPATH=$cache/site:$root/client_lib/python \
  VLLM_ENABLE_V1_MULTIPROCESSING=0 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 "$cache/venv/bin/python" "$here/gate.py"
