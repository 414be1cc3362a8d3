#!/bin/sh
# Mooncake Store and LMCache beside kvd: fetches them (environment.sh) and runs bench.py where there is no
# network but the loopback device.
#
#   sh tests/lab/bench/peers/run.sh [--help | --rounds N | --cores N | --json | ...]
#
# Needs a finished build (build/release), unshare and ip; root, or a kernel that gives users namespaces.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
fail() { printf '[peers] error: %s\n' "$*" >&2; exit 1; }

export PYTHONDONTWRITEBYTECODE=1
case " $* " in
  *" --help "* | *" -h "*) exec python3 "$here/bench.py" --help ;;
esac
environment=$(sh "$here/environment.sh" --fetch)
[ -n "$environment" ] || fail "the peers are not there"
export PYTHONPATH="$here/../../../../client_lib/python"
export LD_LIBRARY_PATH="$environment/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

exec sh "$here/isolated.sh" "$environment/venv/bin/python" "$here/bench.py" "$@"
