#!/bin/sh
# clang-tidy with the checks of .clang-tidy, and clang's own warnings, over a part of the tree.
#
#   sh deploy/ci/tidy.sh                what the last 30 commits changed, newest first, for 180 s
#   sh deploy/ci/tidy.sh --all          every source; 90 minutes of CPU time
#   sh deploy/ci/tidy.sh FILE.cpp …     these
#
# A header is looked at through the .cpp of its name or, failing that, one that includes it. A source
# that had no finding is looked at again when it, a header of ours that it includes or the checks
# changed: their sums lie in ${XDG_CACHE_HOME:-~/.cache}/kvd/tidy, so that calls of 180 s add up. Exit
# status 0: no finding in the files looked at. A part is no failure: the files that were not reached
# are listed, and those that no target compiles here. Needs clang-tidy (deploy/ci/install-deps.sh
# --tidy); builds nothing.
set -eu

commits=30
seconds=180
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
build=build/tidy
results=$build/results
clean=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd/tidy
jobs=${TIDY_JOBS:-$(nproc)}
[ "$jobs" -le 2 ] || jobs=2

# Keeps the sums of all that was looked at, unless some of it was edited meanwhile.
remember() {
  { printf '%s\n' "$1" .clang-tidy CMakePresets.json; sed -n "s|^\.\.* $root/||p" "$log.err"; } |
    sort -u >"$log.read"
  # shellcheck disable=SC2046  # a list of our own paths, without blanks
  [ -n "$(find $(cat "$log.read") -newer "$log.began")" ] || sha256sum $(cat "$log.read") >"$sums"
}

# One file, in a process of its own; TIDY_DEADLINE in seconds since 1970.
if [ "${1:-}" = --one ]; then
  name=$(printf '%s' "$2" | tr / _)
  sums=$clean/$name
  log=$results/$name.txt
  if sha256sum --check --status "$sums" 2>/dev/null; then
    echo "$2" >>"$results/known"
    exit
  fi
  if [ "$(date +%s)" -ge "$TIDY_DEADLINE" ]; then
    echo "$2" >>"$results/late"
    exit
  fi
  : >"$log.began"
  if clang-tidy -p "$build" --quiet --extra-arg=-H "$2" >"$log" 2>"$log.err"; then
    echo "$2" >>"$results/clean"
    remember "$2"
  else
    echo "$2" >>"$results/found"
    cat "$log"
    grep -q . "$log" || grep -v '^\.' "$log.err" || true
  fi
  exit
fi

configure() {
  CUDA_HOME=$(sh deploy/ci/cuda-toolkit.sh)
  export CUDA_HOME
  mkdir -p "$build"
  cmake --preset tidy >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
}

# The sources that a compiler is called for; in a folder without generated ones.
compiled() {
  sed -n 's/.*"file": "\(.*\)".*/\1/p' "$build/compile_commands.json" | sed "s|^$root/||" |
    grep -v "^$build/" | sort -u
}

# The source through which clang-tidy sees a file.
source_of() {
  case "$1" in
    *.cpp) echo "$1" ;;
    *.hpp | *.h)
      own=${1%.h*}.cpp
      if [ -f "$own" ]; then echo "$own"; else git grep -l --fixed-strings "#include \"$1\"" -- '*.cpp' | head -n 1; fi
      ;;
  esac
}

changed() {
  git log --max-count="$commits" --format= --name-only | awk 'NF && !seen[$0]++' | while read -r file; do
    [ ! -f "$file" ] || source_of "$file"
  done | awk 'NF && !seen[$0]++'
}

# The files of one kind, one a line.
tell() {
  [ -s "$results/$1" ] || return 0
  echo "$2:"
  sed 's/^/  /' "$results/$1"
}

count() { if [ -f "$1" ]; then wc -l <"$1" | tr -d ' '; else echo 0; fi; }

configure
rm -rf "$results"
mkdir -p "$results" "$clean"
compiled >"$results/compiled"
TIDY_DEADLINE=$(($(date +%s) + 86400))
case "${1:-}" in
  --all) cp "$results/compiled" "$results/wanted" ;;
  "")
    changed >"$results/wanted"
    TIDY_DEADLINE=$(($(date +%s) + seconds))
    ;;
  *) printf '%s\n' "$@" >"$results/wanted" ;;
esac
export TIDY_DEADLINE
grep -Fx -f "$results/compiled" "$results/wanted" >"$results/files" || true
grep -Fxv -f "$results/compiled" "$results/wanted" >"$results/uncompiled" || true
began=$(date +%s)
xargs -r -P "$jobs" -n 1 sh deploy/ci/tidy.sh --one <"$results/files"

looked=$(($(count "$results/known") + $(count "$results/clean") + $(count "$results/found")))
line="$looked of $(count "$results/files") files looked at ($(count "$results/known") earlier) in $(($(date +%s) - began)) s, $(count "$results/found") with findings, $(count "$results/late") not reached"
tell found "with findings"
tell late "not reached in $seconds s, left to the next call"
tell uncompiled "not compiled here, so not looked at"
echo "$line" | tee "$results/line"
[ ! -f "$results/found" ]
