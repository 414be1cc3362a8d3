#!/bin/sh
# Tries a release as a stranger would, in a bare Debian without a compiler: its checksums, its wheels in a fresh
# environment, kvd with no flag, an engine that puts a block, what is left when all is uninstalled; then the quick
# start, word by word; in Debian 12 also the README's two vLLMs, where deploy/ci/vllm.sh has fetched one, and the
# repository for apt. Called by deploy/package.sh.
#
#   sh deploy/package/check_release.sh RELEASE FOLDER SUITE    bookworm: Debian 12, trixie: Debian 13
#
# FOLDER keeps the bare Debian.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
release=$(CDPATH='' cd -- "$1" && pwd)
folder=$2
suite=$3
mkdir -p "$folder"

say() { printf '== release check: %s\n' "$*"; }
fail() { echo "release check: $*" >&2; exit 1; }

. "$top/deploy/package/root.sh"
require_tools
trap leave_root EXIT
trap 'exit 130' INT TERM

as_alice() {
  as_unit wheels alice env HOME=/home/alice XDG_RUNTIME_DIR=/run/user/1000 LANG=C.UTF-8 \
    PATH=/usr/local/bin:/usr/bin:/bin "$@"
}

try_wheels() {
  apt_install python3-venv curl
  if inside sh -c 'command -v cc || command -v gcc || command -v c++'; then fail "there is a compiler"; fi
  inside useradd --create-home --shell /bin/bash alice
  inside install -d -o alice -g alice -m 700 /run/user/1000
  cp "$top/deploy/package/try_wheels.sh" "$root/release/"
  as_alice sh -e /release/try_wheels.sh /release || fail "the wheels do not do in $suite"

  say "$suite: the quick start"
  ln -s /release "$root/home/alice/wheels"
  python3 "$top/docs/follow.py" --wheels quickstart.md >"$root/quickstart.sh"
  as_alice sh -c 'cd; exec sh -e /quickstart.sh' >"$folder/quickstart.log" 2>&1 </dev/null ||
    { tail -n 30 "$folder/quickstart.log" >&2; fail "the quick start stops a reader"; }
  python3 "$top/docs/follow.py" --wheels --seen quickstart.md <"$folder/quickstart.log" ||
    fail "the quick start shows what is not seen"
}

# vLLM's folder is the same in the root, to be read only.
try_vllm() {
  [ -n "$vllm" ] || { say "vLLM is not fetched (sh deploy/ci/vllm.sh --fetch): not tried"; return; }
  PYTHONPATH="$top/tests/engines/vllm" "$vllm" -c 'import pathlib, sys, other_models
other_models.write_speaking(pathlib.Path(sys.argv[1]))' "$root/model"
  chmod -R a+rX "$root/model"
  apt_install libnuma1 # vLLM wants it
  cp "$top/deploy/package/try_vllm.sh" "$root/release/"
  python3 "$top/docs/follow.py" --wheels ../README.md >"$root/readme.sh"
  as_alice env VLLM_NO_USAGE_STATS=1 sh -e /release/try_vllm.sh /release /vllm /model /readme.sh \
    >"$folder/vllm.log" 2>&1 </dev/null || { tail -n 50 "$folder/vllm.log" >&2; fail "the README stops a reader"; }
  python3 "$top/docs/follow.py" --wheels --seen ../README.md <"$folder/vllm.log" ||
    fail "the README shows what is not seen"
  tail -n 1 "$folder/vllm.log"
}

try_repository() {
  echo "deb [trusted=yes] file:/release/debian ./" >"$root/etc/apt/sources.list.d/kvd.list"
  inside apt-get -q update >"$folder/apt.log" 2>&1 || fail "apt-get update: $(tail -n 3 "$folder/apt.log")"
  apt_install kvd libkvd-client-dev
  inside systemctl start kvd || fail "kvd of the repository does not start"
  inside kvdctl status | head -n 1
  inside systemctl stop kvd
}

(cd "$release" && sha256sum --quiet --check SHA256SUMS) || fail "the checksums are not those of the files"
vllm=""
[ "$suite" != bookworm ] || vllm=$(sh "$top/deploy/ci/vllm.sh")
[ -z "$vllm" ] || bound=$("$vllm" -c 'import site; print(site.getsitepackages()[0])'):/vllm
make_root
cp -r "$release" "$root/release"
say "$suite: the wheels"
try_wheels
if [ "$suite" = bookworm ]; then
  say "$suite: two vLLMs"
  try_vllm
  say "$suite: the repository for apt"
  try_repository
fi
say "$suite: passed"
