#!/bin/sh
# Prints the Python that the tests with the label rest want: one with schemathesis, which tries the admin
# interface by its own description. Prints nothing where there is none.
#
#   python=$(sh deploy/ci/rest.sh [--fetch])
#
# --fetch gets it where it is not: from PyPI, pinned by hash, into ${XDG_CACHE_HOME:-~/.cache}/kvd/rest. 20 MB
# to fetch, half a minute. Needs Debian 12 and python3-venv. Delete that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/python_programs.sh"
folder=$(environment rest schemathesis "20 MB" "$@")
if [ -n "$folder" ]; then printf '%s\n' "$folder/bin/python"; fi
