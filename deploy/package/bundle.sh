#!/bin/sh
# Makes a tree that runs where it is unpacked, on any Linux of this machine's kind (x86-64, aarch64)
# with glibc's kernel ABI (3.2 and newer): kvd and its tools, the client library, the CUDA test
# programs, and every shared library they need, glibc and its loader included. The NVIDIA driver's
# libcuda is never part of it: each machine has its own.
#
#   deploy/package/bundle.sh [OUT]          OUT: ./kvd-bundle; OUT.tar.gz is made beside it
#   BUILD=build/cuda deploy/package/bundle.sh
#   PROGRAMS="kvd kvd-admin kvdctl" TESTS="" deploy/package/bundle.sh OUT       a smaller one
#
# Needs a finished build (BUILD, default build/release) in which nvcc 13 was found.
set -eu

top=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=${BUILD:-$top/build/release}
OUT=${1:-./kvd-bundle}
programs=${PROGRAMS:-"kvd kvd-admin kvd-holder kvdctl kvd-plan kvd-pattern kvd-gpu-report kvd-listed"}
tests=${TESTS-"cuda_contract_test daemon_cuda_test cuda_processes_test cuda_schedule_test kvd-cuda-daemon kvd-cuda-engine"}

fail() { echo "bundle.sh: $*" >&2; exit 1; }
[ -d "$BUILD" ] || fail "no build folder $BUILD: cmake --preset release && cmake --build --preset release"
for name in $programs; do
  [ -x "$BUILD/bin/$name" ] || fail "$BUILD/bin/$name is missing: build it first (nvcc 13 for the CUDA parts)"
done
for name in $tests; do
  [ -x "$BUILD/tests/$name" ] || fail "$BUILD/tests/$name is missing: build it first (nvcc 13 for the CUDA parts)"
done
[ ! -e "$OUT" ] || fail "$OUT exists: name another folder or remove it"

mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
runtime=$OUT/lib/runtime
mkdir -p "$OUT/bin" "$OUT/tests/gpu" "$OUT/libexec" "$runtime"

# A library may be named by a link; what is copied is the file, under the name asked for.
copy_stripped() {
  cp -L "$1" "$2"
  chmod u+w "$2"
  strip -g "$2" 2>/dev/null || true
}

case $(uname -m) in
  x86_64) loader=ld-linux-x86-64.so.2 ;;
  aarch64) loader=ld-linux-aarch64.so.1 ;;
  *) fail "no loader of glibc is known for $(uname -m)" ;;
esac

# libraries PROGRAM: names and files of all it needs, the driver's own left out.
libraries() {
  LD_LIBRARY_PATH=$BUILD/lib ldd "$1" | awk '
    $2 == "=>" && $3 == "not" && $1 !~ /^libcuda/ { print "missing", $1; next }
    $2 == "=>" && $1 !~ /^libcuda/ { print $1, $3 }
    $1 ~ /^\// { n = split($1, part, "/"); print part[n], $1 }'
}

add_libraries() {
  libraries "$1" | while read -r name file; do
    [ "$name" != missing ] || { echo "bundle.sh: $1 needs $file, which is not there" >&2; exit 1; }
    [ -e "$runtime/$name" ] || copy_stripped "$file" "$runtime/$name"
  done
}

# A launcher: the program under the bundled loader, before whatever LD_LIBRARY_PATH names.
add_launcher() {
  cat >"$1" <<EOF
#!/bin/sh
here=\$(cd "\$(dirname "\$(readlink -f "\$0")")" && pwd)
export KVDTEST_SELF="\$here/$2"
export KVD_ADMIN_PROGRAM="\${KVD_ADMIN_PROGRAM:-\$here/../bin/kvd-admin}"  # kvd's own path is the loader's
exec "\$here/../lib/runtime/$loader" --argv0 "$2" \\
  --library-path "\$here/../lib/runtime\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" \\
  "\$here/../libexec/$2" "\$@"
EOF
  chmod 755 "$1"
}

for name in $programs; do
  copy_stripped "$BUILD/bin/$name" "$OUT/libexec/$name"
  add_libraries "$BUILD/bin/$name"
  add_launcher "$OUT/bin/$name" "$name"
done
for name in $tests; do
  copy_stripped "$BUILD/tests/$name" "$OUT/libexec/$name"
  add_libraries "$BUILD/tests/$name"
  add_launcher "$OUT/tests/$name" "$name"
done
# The driver's libcuda asks for parts of glibc that no program here names; the machine's own would
# not fit the C library beside them.
libc_folder=$(dirname "$(libraries "$BUILD/bin/kvd" | awk '$1 == "libc.so.6" { print $2 }')")
for name in libdl.so.2 libm.so.6 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 \
            libnss_dns.so.2 libnss_files.so.2; do
  [ -e "$runtime/$name" ] || copy_stripped "$libc_folder/$name" "$runtime/$name"
done
[ -e "$runtime/$loader" ] || fail "no program named its loader"

# The client library for engines of one's own: headers, package files, without the runtime's glibc.
for component in library client; do
  cmake --install "$BUILD" --prefix "$OUT" --component "$component" >/dev/null
done
cp "$top/tests/gpu/run.sh" "$top/tests/gpu/live.sh" "$OUT/tests/gpu/"
ctest --test-dir "$BUILD" -N -L '^fake-driver$' | sed -n 's/^ *Test *#[0-9]*: //p' >"$OUT/tests/gpu/fake-driver-tests.txt"
cp "$top/deploy/package/README.md" "$OUT/README.md"
cp "$top/LICENSE" "$OUT/LICENSE"
mkdir -p "$OUT/etc" && cp "$top/deploy/config/kvd.toml" "$OUT/etc/kvd.toml"

folder=$(basename "$OUT")
tar -C "$(dirname "$OUT")" --owner=0 --group=0 -czf "$OUT.tar.gz" "$folder"
echo "$OUT ($(du -sh "$OUT" | cut -f1)) and $OUT.tar.gz ($(du -sh "$OUT.tar.gz" | cut -f1))"
