"""python -m kvd_client status [--json] [--endpoint SOCKET]: attaches, and says what is there.

Exit codes as kvdctl's: 0 done, 1 refused by the daemon, 2 wrong usage, 3 no daemon reached.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from . import Client, KvdError, Memory, Unavailable, Unsupported, __version__

_PINGS = 5


def _attach(endpoint: str | None, timeout: float) -> Client:
    """Attaches to whichever memory the daemon lends. A library without CUDA refuses to ask for both
    kinds."""
    try:
        return Client(endpoint, engine_name="kvd_client", timeout=timeout)
    except Unsupported:
        memory = Memory.HOST | Memory.CUDA
        return Client(endpoint, engine_name="kvd_client", memory=memory, timeout=timeout)


def _status(endpoint: str | None, timeout: float) -> dict[str, Any]:
    with _attach(endpoint, timeout) as client:
        trips = []
        for _ in range(_PINGS):
            begin = time.monotonic()
            client.ping(timeout)
            trips.append(time.monotonic() - begin)
        session = client.session()
    return {
        "boot_id": session.boot_id.hex,
        "memory": (session.memory.name or "").lower(),
        "device_uuid": str(session.device_uuid) if session.memory == Memory.CUDA else None,
        "slab_bytes": session.slab_bytes,
        "round_trip_s": statistics.median(trips),
        "client_version": __version__,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvd_client", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="attach to the daemon and say what it lends")
    status.add_argument("--json", action="store_true", help="one JSON object")
    status.add_argument("--endpoint", help="attach socket; else $KVD_ENDPOINT or the default")
    status.add_argument("--timeout", type=float, default=5.0, metavar="S", help="seconds, 5")
    given = parser.parse_args(arguments)
    try:
        found = _status(given.endpoint, given.timeout)
    except KvdError as fault:
        print(f"kvd_client: {type(fault).__name__}: {fault}", file=sys.stderr)
        return 3 if isinstance(fault, Unavailable) else 1
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<16}{value if value is not None else '-'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
