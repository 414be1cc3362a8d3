#!/bin/sh
# Where there is no systemd: runs kvd as its unit says, with the user, the capabilities and the command.
#
#   sh as-unit.sh [PROGRAM]     under PROGRAM, e.g. kvd-holder
set -eu

unit() { sed -n "s/^$1=//p" /lib/systemd/system/kvd.service | head -n 1; }

caps=$(unit AmbientCapabilities | tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
user=$(unit User)
# shellcheck disable=SC2046  # the command line's words
exec setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps "$caps" \
  --ambient-caps "$caps" --no-new-privs "$@" $(unit ExecStart)
