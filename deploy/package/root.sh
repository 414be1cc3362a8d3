# A bare Debian 12 with its systemd in $folder/root, for check.sh, check_release.sh and follow.sh, which read
# this file. Whoever does sets $folder, for another Debian $suite, for a folder that is seen in it $bound
# (FOLDER:PATH), and defines say and fail. Needs root,
# debootstrap, systemd-nspawn (Debian's systemd-container), and a mirror: KVD_DEBIAN_MIRROR, else the one apt uses here. $folder/debian.tar
# keeps it as it was made. It has the network of this machine, but its own processes, users and files.

root=$folder/root
machine="" # process id of its systemd, seen from here
nspawn=""

require_tools() {
  [ "$(id -u)" -eq 0 ] || fail "needs root, for debootstrap and systemd-nspawn"
  for tool in debootstrap systemd-nspawn:systemd-container nsenter:util-linux "$@"; do
    command -v "${tool%:*}" >/dev/null || fail "${tool%:*} is missing: apt-get install ${tool#*:}"
  done
}

inside() {
  nsenter --all --target "$machine" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LC_ALL=C.UTF-8 "$@"
}

# as_unit NAME USER COMMAND...: a service of its own, waited for; `inside systemctl stop NAME` ends it and
# all that it started.
as_unit() {
  service=$1 its_user=$2
  shift 2
  inside systemd-run --quiet --wait --pipe --collect --unit "$service" --uid "$its_user" "$@"
}

leave_root() {
  [ -z "$nspawn" ] || { kill -TERM "$nspawn" 2>/dev/null && wait "$nspawn"; } || true
  nspawn="" machine=""
}

make_root() {
  mirror=${KVD_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' 2>/dev/null | head -n 1)}
  [ -n "$mirror" ] || fail "no Debian mirror is known: set KVD_DEBIAN_MIRROR"
  leave_root
  [ -e "$folder/debian.tar" ] || {
    say "a bare Debian, ${suite:-bookworm}"
    rm -rf "$root"
    debootstrap --variant=minbase --include=systemd-sysv,dbus "${suite:-bookworm}" "$root" "$mirror" \
      >"$folder/debootstrap.log" 2>&1 || { tail -n 20 "$folder/debootstrap.log" >&2; fail "debootstrap failed"; }
    tar -C "$root" -cf "$folder/debian.tar" .
  }
  rm -rf "$root"
  mkdir -p "$root"
  tar -C "$root" -xf "$folder/debian.tar"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  echo debian >"$root/etc/hostname"
  echo "127.0.0.1 localhost debian" >"$root/etc/hosts"
  apt-config dump | grep -i '^Acquire::.*Proxy' >"$root/etc/apt/apt.conf.d/90proxy" || true
  boot_root
  inside apt-get -q update >"$folder/apt.log" 2>&1 || fail "apt-get update: $(tail -n 3 "$folder/apt.log")"
}

# No systemd has to run here, and none is told of it.
boot_root() {
  SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 setsid systemd-nspawn --quiet --register=no --keep-unit --boot \
    --directory "$root" ${bound:+--bind-ro="$bound"} --machine debian --resolv-conf=off --timezone=off \
    --link-journal=no --console=pipe \
    >"$folder/boot.log" 2>&1 </dev/null &
  nspawn=$!
  tries=0
  until machine=$(ps -o pid= --ppid "$nspawn" | tr -d ' ') && [ -n "$machine" ] &&
    inside systemctl is-system-running 2>/dev/null | grep -qE '^(running|degraded)'; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "its systemd does not come up: $(tail -n 5 "$folder/boot.log")"
    sleep 0.1
  done
}

# apt_install WORD...: packages, or files of packages in the root.
apt_install() {
  inside env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
    -o Dpkg::Use-Pty=0 install "$@" >"$folder/apt.log" 2>&1 </dev/null ||
    { tail -n 30 "$folder/apt.log" >&2; fail "cannot be installed: $*"; }
}
