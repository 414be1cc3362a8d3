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

"$cmake" -S "$project" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_C_FLAGS="$flags"
"$cmake" --build "$work/build"
"$work/build/consumer_cpp"
"$work/build/consumer_c"

# The installed example, which finds no kvd here and says so.
"$cmake" -S "$documents/examples/region" -B "$work/example" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags"
"$cmake" --build "$work/example"
if KVD_ENDPOINT=/nonexistent/attach.sock "$work/example/region" 2>"$work/example.log"; then
  fail "the example ran without a kvd"
fi
grep -q '^no kvd: ' "$work/example.log" || fail "the example: $(cat "$work/example.log")"

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name kvd_client.pc)")
export PKG_CONFIG_PATH
found=$(pkg-config --cflags --libs kvd_client)
# shellcheck disable=SC2086 # both are lists of words
"$cxx" -std=c++20 $flags "$project/consumer.cpp" -o "$work/by_pkg_config_cpp" $found
# shellcheck disable=SC2086
"$cc" -Werror $flags "$project/consumer.c" -o "$work/by_pkg_config_c" $found
for language in cpp c; do
  LD_LIBRARY_PATH=$(dirname "$library") "$work/by_pkg_config_$language"
done
