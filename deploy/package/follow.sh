#!/bin/sh
# Follows the guide page by page, as a stranger would, in a bare Debian 12 with its systemd: types what
# docs/follow.py finds in a page, and looks whether the page says what is then seen. Called by
# deploy/package.sh.
#
#   sh deploy/package/follow.sh FOLDER [PAGE...]   FOLDER/debs holds the .debs; pages: quickstart.md ...
#
# Where a page's block cannot be typed, docs/follow.py has it in its table, with the reason.
#
# A stranger is alice, who may use sudo, has Debian's git, and says yes where apt asks. The first pages
# are followed in a clone of what is committed here, the others, after operations.md, on the packages.
# Those that an operator reads are typed by root, beside an engine of alice's.
set -eu

folder=$1
top=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
shift
only=" $* "
IN_A_CLONE="quickstart.md claims.md vllm.md"
BESIDE_AN_ENGINE="concepts.md configuration.md console.md rest.md metrics.md alerts.md policies.md cuda.md
  security.md should.md troubleshooting.md"

say() { printf '== follow: %s\n' "$*"; }
fail() { echo "follow: $*" >&2; exit 1; }

. "$top/deploy/package/root.sh"
require_tools git:git python3:python3

trap leave_root EXIT
trap 'exit 130' INT TERM

is_wanted() {
  case "$only" in "  " | *" $(basename "$1") "*) return 0 ;; esac
  return 1
}
any_wanted() {
  for one in "$@"; do ! is_wanted "$one" || return 0; done
  return 1
}

# A bare root with a reader in it.
begin() {
  make_root
  apt_install sudo git ca-certificates
  inside useradd --create-home --shell /bin/bash alice
  echo 'alice ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/alice"
  echo 'APT::Get::Assume-Yes "true";' >"$root/etc/apt/apt.conf.d/91yes"
  inside install -d -o alice -g alice -m 700 /run/user/1000
  git clone -q "$top" "$root/home/alice/kvd"
  inside chown -R alice:alice /home/alice/kvd
}

# login NAME USER COMMAND...: as a login of that user, in a unit NAME. An editor changes nothing.
login() {
  login_unit=$1 login_user=$2
  shift 2
  home=/home/$login_user
  [ "$login_user" != root ] || home=/root
  as_unit "$login_unit" "$login_user" env HOME="$home" USER="$login_user" XDG_RUNTIME_DIR=/run/user/1000 \
    LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    DEBIAN_FRONTEND=noninteractive EDITOR=true "$@"
}

# follow USER PAGE
follow() {
  is_wanted "$2" || return 0
  say "$2"
  name=$(basename "$2" .md)
  python3 "$top/docs/follow.py" "$2" >"$root/$name.sh"
  began=$(date +%s)
  # What it leaves in the background ends with the unit.
  login typing "$1" sh -c "cd ~/kvd 2>/dev/null || cd; exec sh -e /$name.sh" >"$folder/$name.log" 2>&1 </dev/null ||
    { tail -n 30 "$folder/$name.log" >&2; fail "$2 stops a reader"; }
  python3 "$top/docs/follow.py" --seen "$2" <"$folder/$name.log" || fail "$2 shows what is not seen"
  say "$2: followed in $(($(date +%s) - began)) s"
}

on_a_clone() {
  any_wanted $IN_A_CLONE || return 0
  begin
  for page in $IN_A_CLONE; do follow alice "$page"; done
}

# Does what operations.md does, where that page is not followed.
install_kvd() {
  # shellcheck disable=SC2046  # names without spaces
  apt_install curl $(cd "$root/home/alice/kvd" && ls -d build/release/packages/*.deb | sed 's|^|/home/alice/kvd/|')
  inside usermod -aG kvd alice
  inside systemctl start kvd
}

start_engine() {
  login engine alice kvd-engine --random layers=4,hidden=256 >"$folder/engine.log" 2>&1 </dev/null &
  tries=0
  until inside kvdctl engines 2>/dev/null | grep -q kvd-engine; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "the engine does not attach: $(cat "$folder/engine.log")"
    sleep 0.1
  done
}

on_packages() {
  any_wanted operations.md attach.md $BESIDE_AN_ENGINE || return 0
  begin
  inside install -d -o alice -g alice /home/alice/kvd/build/release/packages
  cp "$folder"/debs/*.deb "$folder"/debs/*.whl "$root/home/alice/kvd/build/release/packages"
  if is_wanted operations.md; then follow alice operations.md; else install_kvd; fi
  follow alice attach.md
  start_engine
  for page in $BESIDE_AN_ENGINE; do follow root "$page"; done
}

say "what is not typed, and why"
python3 "$top/docs/follow.py" --left-out
on_a_clone
on_packages
say "passed"
