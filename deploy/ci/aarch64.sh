#!/bin/sh
# Whether the tree's libraries compile for aarch64 (Grace): every source of the rooms below, by Debian's cross
# compiler, syntax only, warnings are errors. Nothing is linked, and nothing has ever run on such a machine.
#
#   sh deploy/ci/aarch64.sh                 half a minute on two cores
#
# Files of a room are compiled several as one, as the asan preset does; where that does not go, one by one, and
# only what fails then is a fault. Groups that were clean are not looked at again until they, or a header, change:
# their sums lie in ${XDG_CACHE_HOME:-~/.cache}/kvd/aarch64, and so does the compiler, fetched through apt (25 MB)
# and unpacked, not installed. Not among them: files that need libraries of Debian's for arm64, the CUDA files, tests.
set -eu

ROOMS="kernels/copy kernels/device kernels/attention ipc kvd/pool kvd/store kvd/mover kvd/core planner/policy
  client_lib/src"
PACKAGES="cpp-12-aarch64-linux-gnu g++-12-aarch64-linux-gnu libc6-dev-arm64-cross linux-libc-dev-arm64-cross
  libstdc++-12-dev-arm64-cross libgcc-12-dev-arm64-cross"
FLAGS="-std=c++20 -fsyntax-only -fno-use-linker-plugin -O2 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion
  -Wshadow -Werror -I. -Iclient_lib/include -idirafter /usr/include"
SIZE=10 # files of a group

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd/aarch64
compiler=$cache/compiler/usr/bin/aarch64-linux-gnu-g++-12
fail() { echo "aarch64.sh: $*" >&2; exit 1; }

compile() {
  # shellcheck disable=SC2086 # a list of words
  "$compiler" $FLAGS -x c++ "$@"
}

# One group, in a process of its own: a file with the names of its sources.
if [ "${1:-}" = --group ]; then
  group=$2
  sums=$cache/sums/$(cat "$group" deploy/ci/aarch64.sh | sha256sum | cut -c1-24)
  sha256sum --check --status "$sums" 2>/dev/null && exit
  sed 's|.*|#include "&"|' "$group" >"$group.cpp"
  if ! compile -MD -MF "$group.1.d" "$group.cpp" 2>"$group.log"; then
    number=0
    while read -r source; do
      number=$((number + 1))
      compile -MD -MF "$group.$number.d" "$source" || exit 1
    done <"$group"
  fi
  # What they read of ours, as the compiler says: where none of it changes there is nothing to do.
  # shellcheck disable=SC2046 # our own paths, without blanks
  sha256sum $(cat "$group" "$group".*.d | tr -d '\\' | tr ' ' '\n' |
    grep -E '^(ipc|kernels|kvd|planner|client_lib)/.*pp$' | sort -u) >"$sums"
  exit
fi

fetch() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work" # apt fetches as a user of its own
  # shellcheck disable=SC2086 # a list of words
  download() { (cd "$work" && apt-get download -q $PACKAGES) >"$work/log" 2>&1 </dev/null; }
  download || { apt-get update -q >"$work/log" 2>&1 </dev/null && download; } ||
    { tail -n 5 "$work/log" >&2; fail "apt cannot download the cross compiler: apt-get update"; }
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/compiler"; done
  rm -rf "$cache/compiler"
  mv "$work/compiler" "$cache/compiler"
}

# A room's sources, without those for CUDA and the one over cpprestsdk, which takes arm64's OpenSSL.
sources() {
  git ls-files "$1" | grep '\.cpp$' | grep -vE '/cuda/|_cuda\.cpp$|/gpu_fences\.cpp$|/rest_listener\.cpp$' |
    xargs grep -LE '^#include <(cuda|openssl)'
}

mkdir -p "$cache/sums"
exec 9>"$cache/lock"
flock 9
[ -x "$compiler" ] || fetch
groups=$(mktemp -d)
trap 'rm -rf "$groups"' EXIT
began=$(date +%s)
for room in $ROOMS; do
  sources "$room" | split -l $SIZE - "$groups/$(printf %s "$room" | tr / _)."
done
count=$(cat "$groups"/* | wc -l)
status=0
printf '%s\n' "$groups"/* | xargs -P 2 -n 1 sh deploy/ci/aarch64.sh --group || status=1
echo "$count files for aarch64 in $(($(date +%s) - began)) s: $([ $status -eq 0 ] && echo they compile || echo FAILED)"
exit $status
