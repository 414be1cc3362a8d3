#!/bin/sh
# usage: consumer_test.sh CMAKE BUILD_DIR PROJECT_DIR CXX CXX_FLAGS
# The flags matter to sanitizer builds: a library built with one loads only into such a program.
set -eu
cmake=$1 build=$2 project=$3 cxx=$4 flags=$5

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "consumer: $*" >&2; exit 1; }

"$cmake" --install "$build" --prefix "$work/prefix" --component client >"$work/install.log" ||
  fail "installing failed: $(cat "$work/install.log")"

library=$(find "$work/prefix" -name 'libkvd_client.so.?')
[ -n "$library" ] || fail "no versioned libkvd_client.so was installed"
if grep -rlE '#include +["<](ipc|kvd|kernels|client_lib)/' "$work/prefix" --include='*.h*'; then
  fail "installed headers include headers that are not installed"
fi

"$cmake" -S "$project" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_C_FLAGS="$flags"
"$cmake" --build "$work/build"
"$work/build/consumer_cpp"
"$work/build/consumer_c"

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name kvd_client.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046,SC2086 # both are lists of words
"$cxx" -std=c++20 $flags "$project/consumer.cpp" -o "$work/by_pkg_config" \
  $(pkg-config --cflags --libs kvd_client)
LD_LIBRARY_PATH=$(dirname "$library") "$work/by_pkg_config"
