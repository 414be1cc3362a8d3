# Sourced by demo-vllm.sh, turns-vllm.sh, bench-vllm.sh and bench-two-classes.sh in the root of the clone, with
# $demo, a folder,
# and $model_size: builds kvd, finds or fetches vLLM ($python), and makes $demo/packages and $demo/model.

say() { printf '\n== %s\n' "$*"; }

say "building kvd"
sh deploy/ci/install-deps.sh >/dev/null
cmake --preset release >/dev/null
cmake --build --preset release --parallel 2 --target kvd kvd-admin kvdctl kvd_client >/dev/null

say "vLLM"
python=$(sh deploy/ci/vllm.sh --fetch)
"$python" --version

rm -rf "$demo"
mkdir -p "$demo"
wheel=$(BUILD="$root/build/release" PYTHON="$python" sh deploy/package/wheel.sh "$demo/dist")
"$python" -m pip install --quiet --no-deps --no-index --target "$demo/packages" "$wheel"
"$python" tests/engines/vllm/tiny_model.py "$demo/model" 1 "$model_size"

# A kvd in $demo, which programs find. Its pid is $kvd then. Needs the caller's fail.
start_kvd() {
  say "kvd"
  "$root/build/release/bin/kvd" --backend host --pool.hbm 256MiB --pool.dram 512MiB \
    --paths.runtime_dir "$demo" --pool.slab 2MiB --admin.address "" --metrics.address "" \
    >"$demo/kvd.log" 2>&1 &
  kvd=$!
  tries=200
  until [ -S "$demo/attach.sock" ]; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "kvd did not start; see $demo/kvd.log"
    sleep 0.1
  done
  export KVD_ENDPOINT="$demo/attach.sock"
}

# with_vllm FILE WORD...: a Python program that uses vLLM, one thread an engine. $packages: a folder of
# further modules; $within: the words that start a program in another place.
packages="" within=""
with_vllm() {
  # shellcheck disable=SC2086 # a list of words
  $within env PYTHONPATH="$demo/packages${packages:+:$packages}" VLLM_TARGET_DEVICE=cpu \
    VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1 \
    HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$python" "$@"
}
