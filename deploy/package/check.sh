#!/bin/sh
# Tries the Debian packages as a stranger would, in a bare Debian 12 with its systemd: install, start the
# service, run engines, upgrade under them, restart, kill, reload, stop, remove, purge. Called by
# deploy/package.sh. What is cached is found again after an upgrade and after a crash, and not after a
# stop, which is the control.
#
#   sh deploy/package/check.sh FOLDER      FOLDER/first and FOLDER/second hold .debs, the second newer
set -eu

folder=$1
top=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
engine=""

say() { printf '== package check: %s\n' "$*"; }
fail() {
  echo "package check: $*" >&2
  [ -z "$machine" ] || { echo "kvd said:" >&2; inside journalctl --unit kvd --no-pager --lines 20 >&2 || true; }
  exit 1
}

. "$top/deploy/package/root.sh"
require_tools curl:curl

trap leave_root EXIT
trap 'exit 130' INT TERM

# Lists files whose names contain kvd, except for dpkg's own records.
traces() {
  inside find / /run /tmp /dev/shm -xdev \( -path /proc -o -path /debs -o -path /var/lib/dpkg -o -path /var/cache/apt \
    -o -path /var/log \) -prune -o -iname '*kvd*' -print | sort -u
}

install_debs() {
  rm -rf "$root/debs"
  cp -r "$1" "$root/debs"
  # shellcheck disable=SC2046  # names without spaces
  apt_install $(cd "$root" && ls -d debs/*.deb | sed 's|^|/|')
}

start_kvd() { inside systemctl start kvd || fail "kvd does not start"; }
stop_kvd() { inside systemctl stop kvd || fail "kvd does not stop"; }
of_kvd() { inside systemctl show kvd --property "$1" --value; }

# start_engine NAME NEW_TOKENS: decodes in the background, as a user of the group kvd.
start_engine() {
  as_unit "$1" alice kvd-pattern --name "$1" --requests 4 --new "$2" --step-ms 5 --deadline 600 \
    >"$folder/$1.json" 2>"$folder/$1.log" &
  engine=$!
  tries=0
  until inside kvdctl engines 2>/dev/null | grep -q " $1 "; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "the engine $1 does not attach: $(cat "$folder/$1.log")"
    sleep 0.1
  done
}

# end_engine NAME RESTARTS (a pattern): checks that the engine has done all its work, with every byte right.
end_engine() {
  kill -0 "$engine" 2>/dev/null || fail "the engine $1 was done too early to show anything"
  wait "$engine" || fail "the engine $1 ended with status $?: $(cat "$folder/$1.log")"
  engine=""
  summary=$(tail -n 1 "$folder/$1.json")
  for fact in '"pattern_errors":0' '"requests":4' "\"restarts\":$2"; do
    printf '%s' "$summary" | tr -d ' ' | grep -qE "$fact[,}]" || fail "the engine $1 did not end with $fact: $summary"
  done
}

boot() { inside kvdctl status 2>/dev/null | sed -n 's/.*, boot //p'; }

# wait_for_another BOOT: until a kvd answers that is another one, and loads what is cached.
wait_for_another() {
  tries=0
  until now=$(boot) && [ -n "$now" ] && [ "$now" != "$1" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "kvd is not another one after 30 s"
    sleep 0.1
  done
  inside kvdctl policy set load.policy=always >/dev/null || fail "root cannot set a policy"
}

# kvd-engine tells what its prompts are made of: what was computed is found again.
start_server() {
  as_unit server alice kvd-engine --random layers=4,hidden=256 --port 18480 >"$folder/server.log" 2>&1 &
  tries=0
  until cached_tokens >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "kvd-engine does not answer: $(cat "$folder/server.log")"
    sleep 0.1
  done
}

# How many tokens of a prompt of 400 were found computed.
cached_tokens() {
  prompt=$(printf 'twenty bytes of it, %.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20)
  curl -sf -m 60 127.0.0.1:18480/v1/completions --json "{\"prompt\": \"$prompt\", \"max_tokens\": 8}" \
    >"$folder/answer.json" || return 1
  sed -n 's/.*"cached_tokens":\([0-9]*\).*/\1/p' "$folder/answer.json"
}

# In both tiers.
kept_blocks() { curl -s 127.0.0.1:9470/metrics | awk '/^kvd_kept_blocks[{]/ { sum += $2 } END { print sum + 0 }'; }

# What the new kvd found of what was cached is used; nothing of it is lost to an engine that decodes.
expect_cache() {
  kept=$(kept_blocks)
  [ "$kept" -gt 0 ] || fail "the new kvd found nothing of what was cached"
  found=$(cached_tokens)
  [ "$found" -ge 300 ] || fail "$found tokens of 400 were found by the new kvd"
  say "kept $kept blocks; $found tokens of a prompt of 400 were found"
}

rm -f "$folder"/*.log
make_root
before=$(traces)

say "install"
install_debs "$folder/first"
inside sh -c 'for page in kvd.8 kvdctl.1; do test -s /usr/share/man/man${page##*.}/$page*; done' ||
  fail "the man pages are not there"
[ "$(of_kvd ActiveState)" = inactive ] || fail "installing started kvd before it was configured"
for user in alice mallory; do inside useradd "$user"; done
inside usermod -aG kvd alice

say "start the service, with a cache on disk and the drop-in"
sed -i '/^\[disk\]/,/^\[/s|^path = .*|path = "/srv/kv cache"|' "$root/etc/kvd/kvd.toml"
inside install -d -o kvd -g kvd -m 700 "/srv/kv cache"
inside install -d /etc/systemd/system/kvd.service.d
start_kvd
inside journalctl --unit kvd --no-pager | grep -q "use the drop-in of kvd --print-unit" ||
  fail "control: kvd writes outside its folders without the drop-in, or tells no remedy"
stop_kvd
inside kvd --config /etc/kvd/kvd.toml --print-unit >"$root/etc/systemd/system/kvd.service.d/kvd.conf"
inside systemctl daemon-reload
start_kvd
inside systemctl enable kvd 2>/dev/null
[ "$(of_kvd MemoryMax)" -gt 0 ] || fail "the drop-in is not in force"
[ "$(inside stat -c '%U %a' /run/kvd/admin.token)" = "kvd 600" ] || fail "the token is not kvd's alone"
inside kvdctl doctor >"$folder/doctor.txt" || fail "doctor: $(cat "$folder/doctor.txt")"
admins=$(inside sh -c 'for pid in $(cat /sys/fs/cgroup/system.slice/kvd.service/cgroup.procs); do
  echo "$(cat /proc/$pid/comm) $(stat -c %U /proc/$pid)"; done' | sort | tr '\n' ' ')
[ "$admins" = "kvd kvd kvd-admin nobody " ] || fail "the service is not kvd, and kvd-admin as nobody: $admins"

say "engines of the group kvd attach, others do not"
start_engine works 100
end_engine works 0
if as_unit outside mallory kvd-pattern --requests 1 >/dev/null 2>&1; then fail "a user outside the group attached"; fi
if as_unit outside mallory kvdctl doctor >"$folder/doctor.txt"; then fail "doctor finds nothing for a user outside"; fi

say "reload while an engine decodes"
start_engine reloaded 200
sed -i 's|^level = .*|level = "debug"|' "$root/etc/kvd/kvd.toml"
inside systemctl reload kvd || fail "kvd is not told to reload"
end_engine reloaded 0
inside journalctl --unit kvd --no-pager | grep -q "reloaded SLOs, quotas and log level" || fail "kvd did not reload"

say "upgrade while an engine decodes"
start_server
start_engine upgraded 2000
old=$(boot)
install_debs "$folder/second"
[ "$(boot)" = "$old" ] || fail "the upgrade ended kvd"
end_engine upgraded 0

say "take the new kvd while an engine decodes: the cache is kept"
start_engine taken 600
inside systemctl restart kvd || fail "kvd does not start again"
wait_for_another "$old"
expect_cache
end_engine taken '[1-9][0-9]*'

say "kill kvd while an engine decodes: systemd starts it, the cache is kept"
start_engine killed 600
old=$(boot)
inside systemctl kill --kill-who main --signal KILL kvd
wait_for_another "$old"
[ "$(of_kvd NRestarts)" = 1 ] || fail "systemd counts $(of_kvd NRestarts) restarts"
expect_cache
end_engine killed '[1-9][0-9]*'

say "stop and start while an engine decodes: the cache in memory is gone"
start_engine restarted 600
stop_kvd
[ "$(of_kvd NFileDescriptorStore)" = 0 ] || fail "systemd keeps memory of a kvd that was stopped"
inside sh -c 'rm -rf "/srv/kv cache/"*'
start_kvd
[ "$(kept_blocks)" -eq 0 ] || fail "a stop did not end the cache"
found=$(cached_tokens)
[ "$found" -eq 0 ] || fail "control: $found tokens were found that nobody had kept"
end_engine restarted '[1-9][0-9]*'
inside systemctl stop server

say "remove"
sed -i '/^\[disk\]/,/^\[/s|^path = .*|path = "/var/cache/kvd"|' "$root/etc/kvd/kvd.toml"
inside systemctl restart kvd || fail "kvd does not start with its own folder for the disk cache"
[ "$(inside stat -c '%U %a' /var/cache/kvd)" = "kvd 700" ] || fail "the disk cache is not kvd's alone"
inside rm -r "/srv/kv cache" /etc/systemd/system/kvd.service.d
installed=$(inside dpkg-query -f '${Package} ' -W 'kvd*' 'libkvd*')
# shellcheck disable=SC2086  # names without spaces
inside apt-get -q -y remove $installed >"$folder/apt.log" 2>&1 </dev/null || fail "remove: $(tail -n 5 "$folder/apt.log")"
[ "$(of_kvd LoadState)" = not-found ] || fail "systemd still has the unit"
[ "$(traces)" = "$before${before:+
}/etc/kvd
/etc/kvd/kvd.toml" ] || fail "left behind besides configuration: $(traces)"
inside dpkg --purge kvd >"$folder/apt.log" 2>&1 || fail "purge: $(cat "$folder/apt.log")"
[ "$(traces)" = "$before" ] || fail "left behind after purge: $(traces)"
inside getent passwd kvd >/dev/null && fail "the user kvd is left behind after purge"
say "passed"
