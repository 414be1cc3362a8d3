"""Mooncake Store and LMCache beside kvd: the same work, on the same cores, in the same minutes.

Each round runs memcpy, kvd, Mooncake Store (twice) and LMCache in turn; each is started for its turn and
ended after it, so they never compete with each other. All processes of a system, servers and clients, share
the cores of --cores. Rows:

  store, load   blocks of 64 KiB to 2 MiB, one or 32 a call, from and to memory of the client. A call is
                over when the last byte is there. Every byte that was loaded is compared.
  lookup        of 32 K tokens, as 2,048 blocks of 16 or 128 of 256. kvd and Mooncake are asked for digests
                and keys, which the engine has made before; LMCache gets tokens and hashes them, so its rows
                have the hashing in them.
  memory        an entry, of the process that knows where blocks are, not shared with others: neither the blocks
                (of 4 KiB, 20,000) nor the 256 bytes a slot of what kvd writes down for the next one

"of memcpy" is bytes a second divided by those of memcpy in the same round, the median of the rounds. memcpy
is glibc's, of one thread, block by block, between two pieces of cold memory of one process; what writes past
the caches, as kvd does from 64 KiB on, can be faster than it. Other programs on the same cores make all
figures worse and wander: look at the minimum beside the median, and at the load average.

What is compared: kvd serves one node, over shared memory. Mooncake Store serves many nodes: "TCP" is its way
between nodes, here over the loopback device (never RDMA), "shm" that of clients which share memory with a
process of their node. LMCache gathers and scatters pages of 16 tokens where the others move whole blocks. All
are driven from Python. kvd runs under kvd-holder, so that what it caches outlives it, and not with realtime
priority.

Failures, each tried for real, once a run, with 16 blocks of 1 MiB and memory for 256:

  storer killed     kill -9 of the process that stored: for how long are blocks said to be there that cannot be
                    loaded, and how many are still loaded. Mooncake TCP as in its default mode, where the memory
                    is that of the process that stores. Then again, of a process that is storing.
  server killed     kill -9 of the process that clients ask (kvd, Mooncake's master or process of the node,
                    LMCache's server): how long a call takes then
  server restarted  kill -9, another one: what a new process finds. kvd by kvd-holder; Mooncake and LMCache as
                    they come, without their SSD tiers, snapshots or replicas.
  pressure          384 blocks stored: what was acknowledged and is gone. All of them are caches and may do so;
                    kept: with kvd's park or Mooncake's hard pin, that may not

It runs where there is no network but the loopback device, since Mooncake's data ports listen on all
addresses: run.sh sees to that. Needs 4 GiB of memory, and a quarter of an hour with five rounds. No build or
test runs the peers. 0: all ran; 1: what did not is named at the end of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import table
from failures import POOL_BYTES
from store import Settings

_HERE = Path(__file__).parent
_CLONE = _HERE.parents[3]
_SYSTEMS = ("memcpy", "kvd", "Mooncake shm", "Mooncake TCP", "LMCache")
_WITHOUT_PORTS = {"memcpy", "kvd"}  # all the others would listen on
_SPEED_POOL = 1 << 30
_SMALL_CHUNK = 16
_FAILURES = ("storer killed", "server killed", "server restarted", "pressure")
_CHILD_S = 240.0


def main() -> int:
    arguments = parse()
    cores = {int(core) for core in arguments.cores.split(",")}
    os.sched_setaffinity(0, cores)
    systems = [name for name in _SYSTEMS if name in arguments.systems.split(",")]
    if set(systems) - _WITHOUT_PORTS and [name for _, name in socket.if_nameindex()] != ["lo"]:
        sys.exit("peers: there is a network here; use run.sh")
    rows: list[dict[str, Any]] = []
    begin, load_before = time.monotonic(), os.getloadavg()
    for number in range(arguments.rounds):
        for system in systems:
            for role in speed_roles(system):
                rows += [{"round": number, **row} for row in run(system, role, arguments)]
    for role in _FAILURES if arguments.failures else ():
        for system in systems:
            if system != "memcpy":
                rows += run(system, role, arguments)
    about = {
        "machine": table.machine(), "cores": sorted(cores), "rounds": arguments.rounds,
        "seconds": round(time.monotonic() - begin),
        "load_average": [round(load_before[0], 2), round(os.getloadavg()[0], 2)],
    }  # fmt: skip
    print(json.dumps({**about, "rows": rows}) if arguments.json else table.text(about, rows))
    return 1 if any("failed" in row for row in rows) else 0


def parse() -> argparse.Namespace:
    about, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="tests/lab/bench/peers/run.sh", description=about + "\n" + rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    last = max(os.sched_getaffinity(0))
    parser.add_argument("--build", default=str(_CLONE / "build/release"), metavar="FOLDER",
                        help="kvd's build; default: build/release of the clone")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--cores", default=str(last), metavar="N[,N...]",
                        help=f"for every process; default: one, here {last}")  # fmt: skip
    parser.add_argument("--systems", default=",".join(_SYSTEMS), metavar="NAME[,NAME...]",
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--no-failures", dest="failures", action="store_false", help="speed alone")
    parser.add_argument("--json", action="store_true", help="every single time, in microseconds")
    return parser.parse_args()


def speed_roles(system: str) -> tuple[str, ...]:
    return ("transfers",) if system == "memcpy" else ("transfers", "lookups")


def run(system: str, role: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a process that plays the role. Its deadline ends it, together with everything
    that it started."""
    print(f"[peers] {system}: {role}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="kvd-peers-") as folder:
        settings = Settings(
            build=os.path.abspath(arguments.build), folder=folder,
            pool_bytes=POOL_BYTES if role in _FAILURES else _SPEED_POOL,
            chunk_tokens=_SMALL_CHUNK if role == "lookups" else 256,
            storer_owns=role == "storer killed", held=role != "server killed",
        )  # fmt: skip
        said, log = Path(folder, "said"), Path(folder, "client.log")
        with said.open("wb") as out, log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, str(_HERE / "child.py"), system, role,
                 json.dumps(settings._asdict())],
                stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True,
            )  # fmt: skip
            ended = True
            try:
                process.wait(_CHILD_S)
            except subprocess.TimeoutExpired:
                ended = False
            finally:
                end_group(process)
        rows = [json.loads(line) for line in said.read_text().splitlines()]
        if not any("over" in row or "failed" in row for row in rows):
            last = log.read_text(errors="replace").splitlines()[-3:]
            why = f"ended with {process.returncode}" if ended else f"not over after {_CHILD_S:.0f} s"
            rows.append({"row": role, "failed": " | ".join([why, *last])})
    rows = [{"system": system, "role": role, **row} for row in rows if "over" not in row]
    for row in rows:
        if "failed" in row:
            print(f"[peers] {system}: {role}: {row['failed']}", file=sys.stderr, flush=True)
    return rows


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that leads a group, with its servers in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(10)


if __name__ == "__main__":
    sys.exit(main())
