#!/bin/sh
# Tries the Debian packages as a stranger would, in a bare Debian 12: install, start by the unit's
# command line, run engines, upgrade under them, restart, remove, purge. Called by deploy/package.sh.
#
#   sh deploy/package/check.sh FOLDER      FOLDER/first and FOLDER/second hold .debs, the second newer
#
# There is no systemd in the root: what it would do is done by hand here, with the unit's user,
# command and capabilities.
set -eu

folder=$1
root=$folder/root
daemon="" engine=""

say() { printf '== package check: %s\n' "$*"; }
fail() {
  echo "package check: $*" >&2
  [ ! -s "$folder/kvd.log" ] || { echo "kvd said:" >&2; tail -n 20 "$folder/kvd.log" >&2; }
  exit 1
}

[ "$(id -u)" -eq 0 ] || fail "needs root, for debootstrap and chroot"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"

clean_up() {
  for process in $engine $daemon; do kill -KILL "$process" 2>/dev/null || true; done
  wait 2>/dev/null || true
  mountpoint -q "$root/proc" && umount "$root/proc"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# In the background the first is the process itself, which signals reach.
enter() { exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
inside() { (enter "$@"); }

make_root() {
  mirror=${KVD_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' 2>/dev/null | head -n 1)}
  [ -n "$mirror" ] || fail "no Debian mirror is known: set KVD_DEBIAN_MIRROR"
  [ -e "$folder/bare.tar" ] || {
    say "a bare Debian 12"
    debootstrap --variant=minbase bookworm "$root" "$mirror" >"$folder/debootstrap.log" 2>&1 ||
      { tail -n 20 "$folder/debootstrap.log" >&2; fail "debootstrap failed"; }
    tar -C "$root" -cf "$folder/bare.tar" .
  }
  rm -rf "$root"
  mkdir -p "$root"
  tar -C "$root" -xf "$folder/bare.tar"
  mount -t proc proc "$root/proc"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  apt-config dump | grep -i '^Acquire::.*Proxy' >"$root/etc/apt/apt.conf.d/90proxy" || true
  inside apt-get -q update >"$folder/apt.log" 2>&1 || fail "apt-get update: $(tail -n 3 "$folder/apt.log")"
}

# What names kvd in the file system, package records of dpkg aside.
traces() {
  inside find / -xdev \( -path /proc -o -path /debs -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/log \) \
    -prune -o -iname '*kvd*' -print | sort
}

install_debs() {
  rm -rf "$root/debs"
  cp -r "$1" "$root/debs"
  inside sh -c 'DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
    -o Dpkg::Use-Pty=0 install /debs/*.deb' >"$folder/apt.log" 2>&1 </dev/null ||
    { tail -n 30 "$folder/apt.log" >&2; fail "the packages of $1 do not install"; }
}

unit() { sed -n "s/^$1=//p" "$root/lib/systemd/system/kvd.service" | head -n 1; }

# As the unit says: its user, its capabilities, its command.
start_daemon() {
  caps=$(unit AmbientCapabilities | tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
  user=$(unit User)
  # shellcheck disable=SC2046  # the command line's words
  enter setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps "$caps" \
    --ambient-caps "$caps" --no-new-privs $(unit ExecStart) 2>>"$folder/kvd.log" &
  daemon=$!
  tries=0
  until inside kvdctl status >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "kvd does not answer after 30 s"
    kill -0 "$daemon" 2>/dev/null || fail "kvd ended at its start"
    sleep 0.1
  done
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
start_engine upgraded 2000
install_debs "$folder/second"
kill -0 "$daemon" || fail "the upgrade ended kvd"
end_engine upgraded 0

say "restart while an engine decodes"
start_engine restarted 600
stop_daemon
start_daemon
end_engine restarted '[1-9][0-9]*'

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
