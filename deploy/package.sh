#!/bin/sh
# Makes what kvd is installed from, out of a finished build.
#
#   sh deploy/package.sh release  builds, and makes all that a release has, into BUILD/packages/release: .debs as a
#                                 repository for apt, tarball, image, Helm chart, wheels that bring their libraries
#                                 along, a bill of materials, checksums
#   sh deploy/package.sh deb      Debian packages and the Python wheel, into BUILD/packages
#   sh deploy/package.sh wheels   these wheels alone, into BUILD/packages/wheels
#   sh deploy/package.sh tar      a tarball of bin, include, lib and share
#   sh deploy/package.sh oci      a container image, as a folder (OCI image layout): packages/kvd-oci
#   sh deploy/package.sh check    tries the .debs in a bare Debian 12 with its systemd: needs root,
#                                 debootstrap, systemd-container and a mirror (KVD_DEBIAN_MIRROR, else
#                                 the one apt uses here)
#   sh deploy/package.sh check-release   tries what `release` made in a bare Debian 12 and 13; needs the same
#   sh deploy/package.sh follow   types what the pages of docs/ say, in a bare Debian 12, and stops where
#                                 one stops a reader; needs the same. `follow PAGE...`: only these
#   BUILD=build/dev sh deploy/package.sh deb
#
# All others need a finished build (BUILD, default build/release), for .debs the Debian package dpkg-dev. The
# package kvd-llama is made where the llama.cpp parts were built. A tree that brings its libraries
# along is deploy/package/bundle.sh's.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
fail() { echo "package.sh: $*" >&2; exit 1; }

[ "${1:-}${BUILD:-}" != release ] ||
  (cd "$top" && cmake --preset release && cmake --build --preset release --parallel 2 --target kvd_packaged)

BUILD=${BUILD:-$top/build/release}
BUILD=$(CDPATH='' cd -- "$BUILD" 2>/dev/null && pwd) ||
  fail "no build folder: cmake --preset release && cmake --build --preset release"
packages=$BUILD/packages
version=$(sed -n 's/^project(kvd VERSION \([0-9.]*\).*/\1/p' "$top/CMakeLists.txt")

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

pack_tar() { pack TGZ -D CPACK_ARCHIVE_COMPONENT_INSTALL=OFF "$@"; }

# lay_out_image FOLDER
lay_out_image() {
  rm -rf "$1"
  mkdir -p "$(dirname "$1")"
  python3 "$top/deploy/package/oci.py" "$BUILD" "$1" "$version"
}

# make_wheels OUT: those that bring their libraries along.
make_wheels() {
  python=$(sh "$top/deploy/ci/release.sh" --fetch) && [ -n "$python" ] || fail "there is no auditwheel"
  BUILD=$BUILD PYTHON=$python PORTABLE=1 sh "$top/deploy/package/wheel.sh" "$1" \
    kvd-client kvd-vllm kvd-sglang kvd-server
}

# index_debs FOLDER: what apt wants beside the .debs of a flat repository. Unsigned.
index_debs() (
  cd "$1"
  dpkg-scanpackages --multiversion . >Packages 2>/dev/null
  gzip -9 -n -k Packages
  {
    printf 'Origin: kvd\nSuite: bookworm\nArchitectures: %s\nDate: %s\nSHA256:\n' \
      "$(dpkg --print-architecture)" "$(date -Ru)"
    for file in Packages Packages.gz; do
      printf ' %s %s %s\n' "$(sha256sum "$file" | cut -d' ' -f1)" "$(wc -c <"$file")" "$file"
    done
  } >Release
)

release() {
  rm -rf "$1"
  mkdir -p "$1/debian"
  scratch=$packages/scratch
  pack DEB -B "$scratch" >/dev/null
  mv "$scratch"/*.deb "$1/debian"
  index_debs "$1/debian"
  pack_tar -B "$scratch" >/dev/null
  mv "$scratch"/*.tar.gz "$1"
  lay_out_image "$scratch/image" >/dev/null
  tar -C "$scratch/image" --owner=0 --group=0 --sort=name --mtime=@0 -cf "$1/kvd-$version-oci.tar" .
  rm -rf "$scratch"
  make_wheels "$1" >/dev/null
  cp "$top/deploy/package/vllm.Dockerfile" "$1"
  tar -C "$top/deploy/helm" --owner=0 --group=0 --sort=name --mtime=@0 -chf - kvd | gzip -n >"$1/kvd-$version.tgz"
  bill=$1/kvd-$version.cdx.json
  "$python" "$top/deploy/package/sbom.py" "$BUILD" "$bill" "$version"
  "$python" "$top/deploy/package/sbom.py" --check "$bill"
  (cd "$1" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >"$packages/SHA256SUMS" &&
    mv "$packages/SHA256SUMS" .)
  (cd "$1" && find . -type f -printf '%s %P\n' | LC_ALL=C sort -k 2)
}

[ "${1:-}" = oci ] || require_build
case "${1:-}" in
  deb)
    pack DEB
    # Not a Python of one's own: install-deps.sh brings Debian's what a wheel needs.
    BUILD=$BUILD PYTHON=${PYTHON:-/usr/bin/python3} sh "$top/deploy/package/wheel.sh" "$packages"
    ;;
  release) release "$packages/release" ;;
  wheels) make_wheels "$packages/wheels" ;;
  oci) lay_out_image "$packages/kvd-oci" ;;
  tar) pack_tar ;;
  check)
    pack DEB -B "$packages/check/first"
    # The same programs as a later version: what an upgrade does, not what it brings.
    pack DEB -B "$packages/check/second" -D CPACK_DEBIAN_PACKAGE_RELEASE=2
    sh "$top/deploy/package/check.sh" "$packages/check"
    ;;
  check-release)
    [ -d "$packages/release" ] || fail "there is no release: sh deploy/package.sh release"
    for suite in bookworm trixie; do
      sh "$top/deploy/package/check_release.sh" "$packages/release" "${KVD_ROOTS:-$packages/roots}/$suite" "$suite"
    done
    ;;
  follow)
    shift
    rm -rf "$packages/follow/debs"
    pack DEB -B "$packages/follow/debs"
    BUILD=$BUILD PYTHON=${PYTHON:-/usr/bin/python3} sh "$top/deploy/package/wheel.sh" "$packages/follow/debs"
    sh "$top/deploy/package/follow.sh" "$packages/follow" "$@"
    ;;
  *) fail "usage: sh deploy/package.sh release|deb|wheels|tar|oci|check|check-release|follow" ;;
esac
