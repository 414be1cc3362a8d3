#!/bin/sh
# usage: cuda_toolkit_test.sh CUDA_TOOLKIT_SH
# Which toolkit a build takes, and that none is fetched unasked. Fetches nothing: pip is a script.
set -eu
script=$1
[ ! -x /usr/local/cuda/bin/nvcc ] || { echo "a toolkit in /usr/local/cuda hides the others"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "cuda-toolkit: $*" >&2; exit 1; }
cache=$work/cache/kvd
fetched=$cache/cuda-toolkit

# toolkit FOLDER RELEASE: what looks like one.
toolkit() {
  mkdir -p "$1/bin" "$1/include"
  : >"$1/include/cudaTypedefs.h"
  printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.88"\n' "$2" "$2" >"$1/bin/nvcc"
  chmod 755 "$1/bin/nvcc"
}
# printed CUDA_HOME FOLDER-ON-PATH [ARGUMENT]
printed() {
  home=$1 path=$2
  shift 2
  env CUDA_HOME="$home" XDG_CACHE_HOME="$work/cache" PATH="$path:/usr/bin:/bin" sh "$script" "$@" 2>"$work/log"
}
expect() {
  [ "$2" = "$3" ] || fail "$1: printed '$2', not '$3'"
}

toolkit "$work/old" 12.6
toolkit "$work/new" 13.0
toolkit "$work/newer" 14.1
# A python3 that has pip: `install --target FOLDER` copies a toolkit, or fails where $work/offline is.
mkdir -p "$work/python"
cat >"$work/python/python3" <<END
#!/bin/sh
[ "\$3" = install ] || exit 0
[ ! -e "$work/offline" ] || { echo "no such registry"; exit 1; }
echo "\$*" >>"$work/installs"
while [ "\$1" != --target ]; do shift; done
mkdir -p "\$2/nvidia" && cp -r "$work/new" "\$2/nvidia/cu13"
END
chmod 755 "$work/python/python3"

expect "without one" "$(printed '' "$work/python")" ""
expect "an older one on PATH" "$(printed '' "$work/old/bin")" ""
expect "one on PATH" "$(printed '' "$work/new/bin")" "$work/new"
expect "CUDA_HOME before an older one on PATH" "$(printed "$work/newer" "$work/old/bin")" "$work/newer"
expect "an older CUDA_HOME" "$(printed "$work/old" "$work/new/bin")" "$work/new"
[ ! -e "$work/cache" ] || fail "something was fetched unasked"

# A python3 without pip. If Debian's own has pip, that one is taken instead.
if ! /usr/bin/python3 -m pip --version >/dev/null 2>&1; then
  mkdir -p "$work/bare"
  printf '#!/bin/sh\nexit 1\n' >"$work/bare/python3"
  chmod 755 "$work/bare/python3"
  ! printed '' "$work/bare" --fetch || fail "a fetch without pip passed"
  grep -q 'install-deps.sh' "$work/log" || fail "no remedy is named: $(cat "$work/log")"
  [ ! -e "$work/cache" ] || fail "a fetch without pip left something"
fi

: >"$work/offline"
! printed '' "$work/python" --fetch || fail "a failed fetch passed"
grep -q 'no such registry' "$work/log" || fail "a failed fetch does not say why: $(cat "$work/log")"
[ -z "$(ls "$cache")" ] || fail "a failed fetch left $(ls "$cache")"
rm "$work/offline"
expect "fetched" "$(printed '' "$work/python" --fetch)" "$fetched/nvidia/cu13"
grep -q -e '--require-hashes' "$work/installs" || fail "fetched without looking at digests"
expect "fetched before" "$(printed '' "$work/python" --fetch)" "$fetched/nvidia/cu13"
[ "$(wc -l <"$work/installs")" -eq 1 ] || fail "fetched twice"
expect "found without asking for it" "$(printed '' "$work/python")" "$fetched/nvidia/cu13"
echo other >"$fetched/.pins.sha256"
expect "of other pins" "$(printed '' "$work/python")" ""
expect "fetched again for other pins" "$(printed '' "$work/python" --fetch)" "$fetched/nvidia/cu13"
[ "$(ls "$cache")" = cuda-toolkit ] || fail "left behind: $(ls "$cache")"
