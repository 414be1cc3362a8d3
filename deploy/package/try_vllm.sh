# Two vLLMs on kvd out of wheels, typed as the README has it, in a fresh environment:
# `sh -e try_vllm.sh WHEELS VLLM MODEL README`. VLLM is a folder of Python packages with vLLM for CPUs in it, which
# stands for its download; MODEL a model's folder; README what `docs/follow.py --wheels ../README.md` prints. Called by
# check_release.sh in a bare Debian.

fail() { echo "$*" >&2; exit 1; }

readme=$(realpath "$4")
work=$(mktemp -d)
ln -s "$(realpath "$1")" "$work/wheels"
ln -s "$(realpath "$3")" "$work/MODEL"
vllm=$(realpath "$2")
cd "$work"
python3 -m venv venv
. venv/bin/activate
python -c 'import site, sys; print(f"import site; site.addsitedir({sys.argv[1]!r})",
  file=open(site.getsitepackages()[0] + "/vllm.pth", "w"))' "$vllm"
printf '#!%s\nfrom vllm.entrypoints.cli.main import main\nif __name__ == "__main__":\n    main()\n' \
  "$work/venv/bin/python" >venv/bin/vllm
chmod +x venv/bin/vllm

began=$(date +%s)
timeout --foreground 300 sh -e "$readme" >log || { cat log; fail "the README stops a reader"; }
cat log
took=$(($(date +%s) - began))
grep -qE '^vllm:external_prefix_cache_hits_total\{.*\} [1-9]' log ||
  fail "the second vLLM did not find what the first one computed"
echo "from pip to a prefix that the second vLLM found: $took s"
[ "$took" -lt "${MOST_S:-90}" ] || fail "that is longer than ${MOST_S:-90} s"
