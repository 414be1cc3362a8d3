#!/bin/sh
# Packs what quarter.sh takes to a GPU: kvd, kvdctl, the experiments and the tests that are open, the Python
# packages, and vLLM with its kernels (payload.sh). One upload of 64 MiB at most.
#
#   tests/gpu/vllm/bundle.sh [OUT]          OUT: ./quarter-kit, a folder with kvd.tar.xz and vllm-payload.tar.xz
#   BUILD=build/cuda tests/gpu/vllm/bundle.sh
#
# Needs a finished build (BUILD, default build/release) in which nvcc 13 was found. There, in that folder:
#
#   python3 -m tarfile -e kvd.tar.xz && sh kvd/tests/gpu/vllm/quarter.sh
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
top=$(CDPATH='' cd -- "$here/../../.." && pwd)
BUILD=${BUILD:-$top/build/release}
OUT=${1:-./quarter-kit}
export BUILD
most=$((64 << 20))

fail() { echo "bundle.sh: $*" >&2; exit 1; }
[ ! -e "$OUT" ] || fail "$OUT exists: name another folder or remove it"
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A Python that can make a wheel.
for python in "${PYTHON:-}" python3 /usr/bin/python3; do
  [ -z "$python" ] || ! "$python" -c 'import pip, setuptools, wheel' 2>/dev/null || break
done
PYTHON=$python sh "$top/deploy/package/wheel.sh" "$work" >&2
PROGRAMS="kvd kvd-admin kvd-holder kvdctl kvd-pattern kvd-gpu-report kvd-listed" TESTS="daemon_cuda_test" \
  sh "$top/deploy/package/bundle.sh" "$work/kvd" >&2
rm -rf "$work/kvd/include" "$work/kvd/lib/cmake" "$work/kvd/lib/pkgconfig"
mv "$work"/*.whl "$work/kvd/"

# What the wheel's library asks for and a machine with Python alone may lack; never its C or C++ runtime.
mkdir "$work/kvd/lib/engine"
ldd "$BUILD/lib/libkvd_client.so" | awk '$2 == "=>" { print $1, $3 }' |
  grep -vE '^(libc|libm|libpthread|libresolv|libdl|librt|libstdc\+\+|libgcc_s|libcrypto)\.' |
  while read -r name file; do cp -L "$file" "$work/kvd/lib/engine/$name"; done

mkdir "$work/kvd/tests/gpu/vllm"
cp "$here"/*.py "$here/quarter.sh" "$work/kvd/tests/gpu/vllm/"
XZ_OPT=-9e tar -C "$work" --owner=0 --group=0 -cJf "$OUT/kvd.tar.xz" kvd
sh "$here/payload.sh" "$OUT/vllm-payload.tar.xz" >&2
size=$(cat "$OUT"/*.xz | wc -c)
echo "$OUT: $((size >> 20)) MiB ($(du -h "$OUT/kvd.tar.xz" | cut -f1) kvd, $(du -h "$OUT/vllm-payload.tar.xz" | cut -f1) vLLM)"
[ "$size" -le $most ] || fail "more than 64 MiB"
