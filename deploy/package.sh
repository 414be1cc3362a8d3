#!/bin/sh
# Makes what kvd is installed from, out of a finished build.
#
#   sh deploy/package.sh deb      Debian packages and the Python wheel, into BUILD/packages
#   sh deploy/package.sh tar      a tarball of bin, include, lib and share
#   sh deploy/package.sh oci      a container image, as a folder (OCI image layout): packages/kvd-oci
#   sh deploy/package.sh check    tries the .debs in a bare Debian 12 with its systemd: needs root,
#                                 debootstrap, systemd-container and a mirror (KVD_DEBIAN_MIRROR, else
#                                 the one apt uses here)
#   sh deploy/package.sh follow   types what the pages of docs/ say, in a bare Debian 12, and stops where
#                                 one stops a reader; needs the same. `follow PAGE...`: only these
#   BUILD=build/dev sh deploy/package.sh deb
#
# Needs a finished build (BUILD, default build/release), for .debs the Debian package dpkg-dev. The
# package kvd-llama is made where the llama.cpp parts were built. A tree that brings its libraries
# along is deploy/package/bundle.sh's.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
BUILD=${BUILD:-$top/build/release}
BUILD=$(CDPATH='' cd -- "$BUILD" 2>/dev/null && pwd) || {
  echo "package.sh: no build folder: cmake --preset release && cmake --build --preset release" >&2
  exit 1
}
packages=$BUILD/packages

fail() { echo "package.sh: $*" >&2; exit 1; }

require_build() {
  for program in kvd kvd-admin kvd-holder kvdctl kvd-plan kvd-sim kvd-pattern kvd-engine; do
    [ -x "$BUILD/bin/$program" ] || fail "$BUILD/bin/$program is missing: build it first"
  done
  [ -e "$BUILD/man/stamp" ] || fail "$BUILD/man is missing: build the target kvd_man first"
}

# pack GENERATOR [OPTION...]
pack() {
  generator=$1
  shift
  [ "$generator" != DEB ] || command -v dpkg-shlibdeps >/dev/null ||
    fail "dpkg-shlibdeps is missing: install dpkg-dev"
  (cd "$BUILD" && cpack -G "$generator" "$@") >"$BUILD/cpack.log" 2>&1 ||
    { cat "$BUILD/cpack.log" >&2; fail "cpack failed"; }
  sed -n 's/^CPack: - package: \(.*\) generated\.$/\1/p' "$BUILD/cpack.log"
}

[ "${1:-}" = oci ] || require_build
case "${1:-}" in
  deb)
    pack DEB
    # Not a Python of one's own: install-deps.sh brings Debian's what a wheel needs.
    BUILD=$BUILD PYTHON=${PYTHON:-/usr/bin/python3} sh "$top/deploy/package/wheel.sh" "$packages"
    ;;
  oci)
    rm -rf "$packages/kvd-oci"
    mkdir -p "$packages"
    version=$(sed -n 's/^project(kvd VERSION \([0-9.]*\).*/\1/p' "$top/CMakeLists.txt")
    python3 "$top/deploy/package/oci.py" "$BUILD" "$packages/kvd-oci" "$version"
    ;;
  tar) pack TGZ -D CPACK_ARCHIVE_COMPONENT_INSTALL=OFF ;;
  check)
    pack DEB -B "$packages/check/first"
    # The same programs as a later version: what an upgrade does, not what it brings.
    pack DEB -B "$packages/check/second" -D CPACK_DEBIAN_PACKAGE_RELEASE=2
    sh "$top/deploy/package/check.sh" "$packages/check"
    ;;
  follow)
    shift
    rm -rf "$packages/follow/debs"
    pack DEB -B "$packages/follow/debs"
    BUILD=$BUILD PYTHON=${PYTHON:-/usr/bin/python3} sh "$top/deploy/package/wheel.sh" "$packages/follow/debs"
    sh "$top/deploy/package/follow.sh" "$packages/follow" "$@"
    ;;
  *) fail "usage: sh deploy/package.sh deb|tar|oci|check|follow" ;;
esac
