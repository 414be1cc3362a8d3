#!/bin/sh
# A quarter of an hour on a GPU: kvd under vLLM with its own kernels, ordered by what the answers are worth.
#
#   quarter.sh [--seconds S] [--only V1,V3 | --failed REPORT.json] [FOLDER]
#   tests/gpu/vllm/quarter.sh --dry [--only …] [BUILD-FOLDER]
#
# FOLDER: what bundle.sh made, unpacked; the one this script lies in. vllm-payload.tar.xz (payload.sh) lies
# beside it or in it. Needs an H100 or H200, Python 3.12, CUDA 13, torch 2.11, Triton 3.6, transformers 5.17;
# builds nothing and asks no network. The first call: 600 s, the default; a second one for what failed:
#
#   quarter.sh --seconds 180 --failed quarter/quarter.json
#
# --dry: the same items, tiny, on vLLM for CPUs and a finished build: a minute and a half on two cores. What only
# a GPU can answer says "not run: no GPU".
#
# Each item has its seconds, is ended by its deadline, and the next begins. OUT (./quarter) gets quarter.json and
# quarter.md, rewritten after each item, logs.txt, and gpu-report.* of kvd's experiments: fewer than 8 files.
# QUARTER_MODEL=1.5b takes a smaller model, which a card of 80 GB holds beside kvd. Exit status: 0 nothing failed, 1 something did, 2 it could not run.
set -u

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
OUT=${OUT:-./quarter}
export QUARTER_SAID="$*"
fail() { echo "quarter.sh: $*" >&2; exit 2; }

seconds=600 only= failed= dry=
while [ $# -ge 1 ]; do
  case "$1" in
    --seconds) seconds=${2:-}; shift 2 || exit 2 ;;
    --only) only=${2:-}; shift 2 || exit 2 ;;
    --failed) failed=${2:-}; shift 2 || exit 2 ;;
    --dry) dry=1; shift ;;
    --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail "$1 is not understood" ;;
    *) break ;;
  esac
done
case "$seconds" in "" | *[!0-9]*) fail "--seconds is a whole number" ;; esac

work=$(mktemp -d)
child=
stop() {
  [ -z "$child" ] || kill "$child" 2>/dev/null
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 3' INT TERM

began=$(date +%s)
if [ -n "$dry" ]; then
  programs=${1:-$top/build/release}
  device=cpu
  python=$(sh "$top/deploy/ci/vllm.sh") && [ -n "$python" ] || fail "no vLLM for CPUs: sh deploy/ci/vllm.sh --fetch"
  wheel=$(BUILD=$programs PYTHON=${KVDTEST_PYTHON:-/usr/bin/python3} sh "$top/deploy/package/wheel.sh" "$work") ||
    fail "no wheel: build kvd_client first"
  packages=$work/packages
else
  programs=${1:-$top}
  device=cuda
  python=python3
  command -v nvidia-smi >/dev/null || fail "no NVIDIA driver here"
  wheel=$(ls "$programs"/*.whl) || fail "$programs holds no wheel: is it what bundle.sh made?"
  for payload in "$programs/vllm-payload.tar.xz" "$programs/../vllm-payload.tar.xz" ""; do
    [ ! -f "$payload" ] || break
  done
  [ -n "$payload" ] || fail "no vllm-payload.tar.xz beside $programs: payload.sh makes it"
  python3 -m tarfile -e "$payload" "$work" || fail "$payload cannot be unpacked"
  packages=$work/packages:$work/site:$programs/lib/engine
fi
[ -x "$programs/bin/kvd" ] || fail "$programs/bin/kvd is missing"
python3 -m zipfile -e "$wheel" "$work/packages" || fail "$wheel cannot be unpacked"

# The reports are written by then, whatever hangs.
timeout -k 5 $((seconds + 20)) "$python" "$here/play.py" --programs "$programs" --packages "$packages" \
  --python "$python" --device $device --out "$OUT" --seconds $((seconds - ($(date +%s) - began))) \
  ${only:+--only "$only"} ${failed:+--failed "$failed"} &
child=$!
status=0
wait $child || status=$?
child=
exit $status
