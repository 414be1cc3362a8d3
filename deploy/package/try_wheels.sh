# The wheels of a release in a fresh environment, as one types it: `sh -e try_wheels.sh FOLDER`. Called by
# check_release.sh in a bare Debian.

fail() { echo "$*" >&2; exit 1; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
installed() { find venv -not -name '*.pyc' -not -name __pycache__ | LC_ALL=C sort; }

# until_works COMMAND...: for 30 s at most.
until_works() {
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || fail "after 30 s still not: $*"
    sleep 0.05
  done
}

wheels=$1
cd "$(mktemp -d)"
python3 -m venv venv
. venv/bin/activate
installed >before

began=$(now_ms)
pip install --quiet --disable-pip-version-check --no-index --find-links "$wheels" kvd-server kvd-vllm
after_pip=$(now_ms)
kvd & kvd=$!
until_works kvdctl status
ready=$(now_ms)
echo "installed in $((after_pip - began)) ms, kvd is ready $((ready - after_pip)) ms later"
kvdctl status | head -n 1
kvdctl doctor || [ $? -eq 1 ]

# kvd-admin, with its console and the metrics.
python3 -c 'import urllib.request as web
assert b"<html" in web.urlopen("http://127.0.0.1:8470/").read(500)
assert b"kvd_tokens_total" in web.urlopen("http://127.0.0.1:9470/metrics").read()'

# An engine puts a block into the cache, and finds it.
python3 -c 'import hashlib, kvd_client, kvd_vllm
with kvd_client.Client() as client, client.allocate(1 << 20) as region:
    view = region.view()
    view[:4096] = b"k" * 4096
    digest = hashlib.sha256(b"the first 16 tokens").digest()
    pieces = [kvd_client.Piece(offset=0, stride=4096, bytes=4096)]
    with client.cache("an engine", block_tokens=16, block_bytes=4096, region=region, blocks=256,
                      pieces=pieces) as cache:
        cache.wait([cache.store([digest], [0])])
        assert cache.lookup([digest]) == 1
        cache.wait([cache.load([digest], [7])])
    assert bytes(view[7 * 4096 : 8 * 4096]) == b"k" * 4096
    del view
print("a block was put and found")'

kill "$kvd"
wait "$kvd" || fail "kvd ended with status $?"

# Under kvd-holder, which starts it again.
kvd-holder kvd & holder=$!
until_works kvdctl status
first=$(kvdctl status | sed -n 's/.*, boot //p')
kill -KILL "$(cat "/proc/$holder/task/$holder/children")"
another() { [ "$(kvdctl status | sed -n 's/.*, boot //p')" != "$first" ] && kvdctl status; }
until_works another
echo "kvd-holder started another kvd"
kill "$holder"
wait "$holder" || fail "kvd-holder ended with status $?"

status=0
kvdctl no-such-command >/dev/null 2>&1 || status=$?
[ "$status" -ne 0 ] || fail "kvdctl's status is not handed on"
pip uninstall --quiet --yes kvd-server kvd-vllm kvd-client
installed >after
cmp before after || fail "left behind: $(comm -13 before after)"
# Its folder of sockets keeps token and locks until the machine is started anew.
left=$(find /run/user /tmp /dev/shm "$HOME" -ipath "*kvd*" -user "$(id -u)" -not -type d \
  -not -path "$XDG_RUNTIME_DIR/kvd/*" 2>/dev/null || true)
[ -z "$left" ] || fail "left behind: $left"
echo "nothing is left behind"
