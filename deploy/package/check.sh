#!/bin/sh
# Tries the Debian packages as a stranger would, in a bare Debian 12: install, start by the unit's
# command line, run engines, upgrade under them, restart, remove, purge. Called by deploy/package.sh.
# What is cached is found again after an upgrade, and not after a stop, which is the control.
#
#   sh deploy/package/check.sh FOLDER      FOLDER/first and FOLDER/second hold .debs, the second newer
#
# There is no systemd in the root (root.sh). kvd-holder plays the part of its store of descriptors.
set -eu

folder=$1
top=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
daemon="" engine="" server=""

say() { printf '== package check: %s\n' "$*"; }
fail() {
  echo "package check: $*" >&2
  [ ! -s "$folder/kvd.log" ] || { echo "kvd said:" >&2; tail -n 20 "$folder/kvd.log" >&2; }
  exit 1
}

. "$top/deploy/package/root.sh"
require_tools curl

clean_up() {
  for process in $engine $server $daemon; do kill -KILL "$process" 2>/dev/null || true; done
  wait 2>/dev/null || true
  leave_root
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# What names kvd in the file system, package records of dpkg aside.
traces() {
  inside find / -xdev \( -path /proc -o -path /debs -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/log \) \
    -prune -o -iname '*kvd*' -print | sort
}

install_debs() {
  rm -rf "$root/debs"
  cp -r "$1" "$root/debs"
  # shellcheck disable=SC2046  # names without spaces
  apt_install $(cd "$root" && ls -d debs/*.deb | sed 's|^|/|')
}

wait_for_kvd() {
  tries=0
  until inside kvdctl status >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "kvd does not answer after 30 s"
    kill -0 "$daemon" 2>/dev/null || fail "kvd ended at its start"
    sleep 0.1
  done
}

# start_daemon [PROGRAM]: as the unit says; under PROGRAM.
start_daemon() {
  enter sh /usr/local/sbin/as-unit "$@" 2>>"$folder/kvd.log" &
  daemon=$!
  wait_for_kvd
}

stop_daemon() {
  kill -TERM "$daemon"
  wait "$daemon" || fail "kvd ended with status $?"
  daemon=""
}

as() { user=$1; shift; enter setpriv --reuid "$user" --regid "$user" --init-groups "$@"; }

# start_engine NAME NEW_TOKENS: decodes in the background, as a user of the group kvd.
start_engine() {
  as alice kvd-pattern --name "$1" --requests 4 --new "$2" --step-ms 5 --deadline 600 \
    >"$folder/$1.json" 2>"$folder/$1.log" &
  engine=$!
  tries=0
  until inside kvdctl engines 2>/dev/null | grep -q " $1 "; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "the engine $1 does not attach: $(cat "$folder/$1.log")"
    sleep 0.1
  done
}

# end_engine NAME RESTARTS (a pattern): it has done all its work, with every byte right.
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

# Ends the kvd that runs under kvd-holder in order, and waits for the one that is installed now.
upgrade_daemon() {
  old=$(boot)
  kill -USR1 "$daemon"
  tries=0
  until now=$(boot) && [ -n "$now" ] && [ "$now" != "$old" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "kvd is not another one 30 s after the signal to kvd-holder"
    sleep 0.1
  done
  inside kvdctl policy set load.policy=always >/dev/null || fail "root cannot set a policy"
}

# kvd-engine tells what its prompts are made of: what was computed is found again.
start_server() {
  as alice kvd-engine --random layers=4,hidden=256 --port 18480 >"$folder/server.log" 2>&1 &
  server=$!
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

rm -f "$folder"/*.log
make_root
before=$(traces)

say "install"
install_debs "$folder/first"
inside sh -c 'for page in kvd.8 kvdctl.1; do test -s /usr/share/man/man${page##*.}/$page*; done' ||
  fail "the man pages are not there"
for program in alice mallory; do inside useradd "$program"; done
inside usermod -aG kvd alice

say "start by the unit's command line, as its user"
start_daemon
[ "$(inside stat -c '%U %a' /run/kvd/admin.token)" = "kvd 600" ] || fail "the token is not kvd's alone"
inside kvdctl doctor >"$folder/doctor.txt" || fail "doctor: $(cat "$folder/doctor.txt")"
admins=$(ps -o comm=,user= --ppid "$daemon")
[ "$admins" = "kvd-admin       nobody" ] || fail "kvd-admin does not run as nobody: $admins"

say "engines of the group kvd attach, others do not"
start_engine works 100
end_engine works 0
if (as mallory kvd-pattern --requests 1 >/dev/null 2>&1); then fail "a user outside the group attached"; fi
if (as mallory kvdctl doctor >"$folder/doctor.txt"); then fail "doctor finds nothing for a user outside"; fi

say "upgrade while an engine decodes"
stop_daemon
start_daemon kvd-holder
start_server
start_engine upgraded 2000
install_debs "$folder/second"
kill -0 "$daemon" || fail "the upgrade ended kvd"
end_engine upgraded 0

say "take the new kvd while an engine decodes: the cache is kept"
start_engine taken 600
upgrade_daemon
kept=$(kept_blocks)
[ "$kept" -gt 0 ] || fail "the new kvd found nothing of what DRAM had cached"
found=$(cached_tokens)
[ "$found" -ge 300 ] || fail "$found tokens of 400 were found by the new kvd"
end_engine taken '[1-9][0-9]*'
say "kept $kept blocks; $found tokens of a prompt of 400 were found"

say "stop and start while an engine decodes: the cache is gone"
start_engine restarted 600
stop_daemon
start_daemon kvd-holder
[ "$(kept_blocks)" -eq 0 ] || fail "a stop did not end the cache"
found=$(cached_tokens)
[ "$found" -eq 0 ] || fail "control: $found tokens were found that nobody had kept"
end_engine restarted '[1-9][0-9]*'
kill -TERM "$server"
wait "$server" || fail "kvd-engine ended with status $?: $(cat "$folder/server.log")"
server=""

say "remove"
stop_daemon
inside apt-get -q -y remove kvd kvd-llama libkvd-client0 libkvd-client-dev >"$folder/apt.log" 2>&1 </dev/null ||
  inside apt-get -q -y remove kvd libkvd-client0 libkvd-client-dev >"$folder/apt.log" 2>&1 </dev/null ||
  fail "remove: $(tail -n 5 "$folder/apt.log")"
[ "$(traces)" = "$before${before:+
}/etc/kvd
/etc/kvd/kvd.toml" ] || fail "left behind besides configuration: $(traces)"
inside dpkg --purge kvd >"$folder/apt.log" 2>&1 || fail "purge: $(cat "$folder/apt.log")"
[ "$(traces)" = "$before" ] || fail "left behind after purge: $(traces)"
inside getent passwd kvd >/dev/null && fail "the user kvd is left behind after purge"
say "passed"
