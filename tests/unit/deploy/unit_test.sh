#!/bin/sh
# usage: unit_test.sh UNIT
# The unit leaves little exposed, and says what kvd needs of it.
set -eu
command -v systemd-analyze >/dev/null || { echo "systemd is not installed"; exit 77; }
report=$(systemd-analyze security --offline=true --no-pager --threshold=25 "$1") || {
  printf '%s\n' "$report" | grep -v '✓' >&2
  echo "unit: the exposure is above 2.5" >&2
  exit 1
}
for line in Type=notify RuntimeDirectory=kvd Group=kvd "ExecStart=/usr/bin/kvd --config /etc/kvd/kvd.toml"; do
  grep -qxF "$line" "$1" || { echo "unit: $line is missing" >&2; exit 1; }
done
