#!/bin/sh
# usage: consumer_test.sh CMAKE BUILD_DIR PROJECT_DIR CC CXX FLAGS
# The flags matter to sanitizer builds: a library built with one loads only into such a program.
set -eu
cmake=$1 build=$2 project=$3 cc=$4 cxx=$5 flags=$6

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "consumer: $*" >&2; exit 1; }

for component in library client documents; do
  "$cmake" --install "$build" --prefix "$work/prefix" --component "$component" >"$work/install.log" ||
    fail "installing failed: $(cat "$work/install.log")"
done
documents="$work/prefix/share/doc/kvd"
for file in README.md LICENSE kvd.toml; do
  [ -s "$documents/$file" ] || fail "$file was not installed into share/doc/kvd"
done

library=$(find "$work/prefix" -name 'libkvd_client.so.?')
[ -n "$library" ] || fail "no versioned libkvd_client.so was installed"
if grep -rlE '#include +["<](ipc|kvd|kernels|client_lib)/' "$work/prefix" --include='*.h*'; then
  fail "installed headers include headers that are not installed"
fi

# builds_against NAME PREFIX PKG_CONFIG_PATH: the project, by CMake and by pkg-config.
builds_against() {
  "$cmake" -S "$project" -B "$work/$1" -DCMAKE_PREFIX_PATH="$2" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_C_FLAGS="$flags"
  "$cmake" --build "$work/$1"
  "$work/$1/consumer_cpp"
  "$work/$1/consumer_c"
  found=$(PKG_CONFIG_PATH=$3 pkg-config --cflags --libs kvd_client)
  # shellcheck disable=SC2086 # both are lists of words
  "$cxx" -std=c++20 $flags "$project/consumer.cpp" -o "$work/$1/by_pkg_config_cpp" $found
  # shellcheck disable=SC2086
  "$cc" -Werror $flags "$project/consumer.c" -o "$work/$1/by_pkg_config_c" $found
}

builds_against installed "$work/prefix" "$(dirname "$(find "$work/prefix" -name kvd_client.pc)")"
for language in cpp c; do
  LD_LIBRARY_PATH=$(dirname "$library") "$work/installed/by_pkg_config_$language"
done

# Where nothing is installed, the programs find the library without being told.
builds_against built "$build" "$build/lib/pkgconfig"
for language in cpp c; do "$work/built/by_pkg_config_$language"; done

# The installed example, which finds no kvd here and says so.
"$cmake" -S "$documents/examples/region" -B "$work/example" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags"
"$cmake" --build "$work/example"
if KVD_ENDPOINT=/nonexistent/attach.sock "$work/example/region" 2>"$work/example.log"; then
  fail "the example ran without a kvd"
fi
grep -q '^no kvd: ' "$work/example.log" || fail "the example: $(cat "$work/example.log")"
