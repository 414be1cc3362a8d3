"""A process of one system: child.py SYSTEM ROLE SETTINGS, with the settings as JSON. It prints what
it found, one line of JSON for each finding; bench.py starts it, and ends it with all that it
started."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import failures
import speed
from store import PATIENCE_S, Failed, Settings, System

_MODULES = {
    "memcpy": ("floor_store", "Floor"),
    "kvd": ("kvd_store", "Kvd"),
    "Mooncake shm": ("mooncake_store", "MooncakeShared"),
    "Mooncake TCP": ("mooncake_store", "Mooncake"),
    "LMCache": ("lmcache_store", "Lmcache"),
}
_STORING_S = 1.0


def main() -> None:
    name, role, text = sys.argv[1:]
    settings = Settings(**json.loads(text))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print there

    def tell(row: dict[str, Any]) -> None:
        print(json.dumps(row), file=out)

    progress = Path(settings.folder, "progress")
    system = make(name, settings)
    if role in ("hold", "endless"):
        store = system.open(failures.BLOCK, 4, owner=True)
        if role == "hold":
            failures.hold(store, lambda word: tell({"said": word}))
        failures.endless(store, lambda word: tell({"said": word}), progress)
    if role == "read":
        tell(failures.read(lambda: system.open(failures.BLOCK, 4)))
        os._exit(0)
    try:
        system.start()
        if role == "storer killed":
            failures.storer_killed(system, lambda what: begun(name, what, text), progress, tell)
        elif role == "server restarted":
            failures.server_restarted(system, lambda: asked(name, "read", text), tell)
        else:
            roles = {"transfers": speed.transfers, "lookups": speed.lookups,
                     "server killed": failures.server_killed, "pressure": failures.pressure}  # fmt: skip
            roles[role](system, tell)
        tell({"over": True})
    except Failed as error:
        tell({"row": role, "failed": str(error)})
    except Exception:
        tell({"row": role, "failed": traceback.format_exc()})
    finally:
        system.stop()
        out.flush()
        os._exit(0)  # a client's own threads may wait for a dead server


def make(name: str, settings: Settings) -> System:
    if name == "kvd":
        importlib.import_module("kvd_store").prepare(settings.build)
    module, made = _MODULES[name]
    system: System = getattr(importlib.import_module(module), made)(settings)
    return system


def another(name: str, role: str, settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, name, role, settings],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def begun(name: str, role: str, settings: str) -> int:
    """A process that stores, and has said so."""
    process = another(name, role, settings)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise Failed(f"the process that is to {role} ended with {process.wait(PATIENCE_S)}")
    if role == "endless":
        time.sleep(_STORING_S)
    return process.pid


def asked(name: str, role: str, settings: str) -> dict[str, Any]:
    process = another(name, role, settings)
    out, _ = process.communicate(timeout=2 * PATIENCE_S)
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
