# Sourced by demo-vllm.sh and bench-vllm.sh in the root of the clone, with $demo, a folder, and
# $model_size: builds kvd, finds or fetches vLLM ($python), and makes $demo/packages and $demo/model.

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
