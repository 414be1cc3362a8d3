# A bare Debian 12 in $folder/root, for check.sh and follow.sh, which read this file. Whoever does sets
# $folder and defines say and fail. Needs root, debootstrap, and a mirror: KVD_DEBIAN_MIRROR, else the
# one apt uses here. $folder/bare.tar keeps it as it was made.
#
# There is no systemd in the root: as-unit.sh does by hand what it would do for kvd.service.

root=$folder/root

require_tools() {
  [ "$(id -u)" -eq 0 ] || fail "needs root, for debootstrap and chroot"
  for tool in debootstrap "$@"; do
    command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install $tool"
  done
}

# In the background the first is the process itself, which signals reach.
enter() { exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
inside() { (enter "$@"); }

leave_root() { ! mountpoint -q "$root/proc" || umount "$root/proc"; }

make_root() {
  mirror=${KVD_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' 2>/dev/null | head -n 1)}
  [ -n "$mirror" ] || fail "no Debian mirror is known: set KVD_DEBIAN_MIRROR"
  [ -e "$folder/bare.tar" ] || {
    say "a bare Debian 12"
    debootstrap --variant=minbase bookworm "$root" "$mirror" >"$folder/debootstrap.log" 2>&1 ||
      { tail -n 20 "$folder/debootstrap.log" >&2; fail "debootstrap failed"; }
    tar -C "$root" -cf "$folder/bare.tar" .
  }
  leave_root
  rm -rf "$root"
  mkdir -p "$root"
  tar -C "$root" -xf "$folder/bare.tar"
  mount -t proc proc "$root/proc"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp "$top/deploy/package/as-unit.sh" "$root/usr/local/sbin/as-unit"
  apt-config dump | grep -i '^Acquire::.*Proxy' >"$root/etc/apt/apt.conf.d/90proxy" || true
  inside apt-get -q update >"$folder/apt.log" 2>&1 || fail "apt-get update: $(tail -n 3 "$folder/apt.log")"
}

# apt_install WORD...: packages, or files of packages in the root.
apt_install() {
  inside env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
    -o Dpkg::Use-Pty=0 install "$@" >"$folder/apt.log" 2>&1 </dev/null ||
    { tail -n 30 "$folder/apt.log" >&2; fail "cannot be installed: $*"; }
}
