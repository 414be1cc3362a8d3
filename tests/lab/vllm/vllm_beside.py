"""Mooncake Store and LMCache behind vLLM's own connectors, for vllm_turns.py: their servers, and
what an engine needs to use them.

The servers are those of tests/lab/bench/peers, which is in $PYTHONPATH. Mooncake's listen on all
addresses, so everything runs where there is only the loopback device (isolated.sh there). Settings
are the defaults, except for addresses and the memory's size, and that both store the answers, which
the next turn repeats.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

POOL_BYTES = 512 << 20  # as much DRAM as the kvd of turns-vllm.sh has


class Beside(NamedTuple):
    """Running servers, and what an engine needs to use them."""

    system: Any  # one of tests/lab/bench/peers
    engine: dict[str, Any]
    variables: dict[str, str]


def begin(name: str, folder: Path, given: dict[str, Any]) -> Beside:
    """Starts the servers of one system; their logs are in FOLDER/NAME-servers. The caller ends
    them: system.stop()."""
    from store import Settings

    home = folder / f"{name}-servers"
    home.mkdir(parents=True, exist_ok=True)
    settings = Settings("", str(home), POOL_BYTES, given["lmcache_chunk"])
    beside: Beside = {"mooncake": _mooncake, "lmcache": _lmcache}[name](settings, home)
    try:
        beside.system.start()
    except BaseException:
        beside.system.stop()
        raise
    return beside


def admit(mode: str) -> None:
    """What an engine's process does for a mode before it makes the engine."""
    if mode == "lmcache":
        _let_numba_be()


def _mooncake(settings: Any, home: Path) -> Beside:
    from mooncake_store import MASTER_PORT, Mooncake

    config = home / "mooncake.json"
    config.write_text(json.dumps({
        "mode": "standalone-store", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
        "master_server_address": f"127.0.0.1:{MASTER_PORT}", "device_name": "",
        "global_segment_size": 0, "local_buffer_size": "64MB",
    }))  # fmt: skip
    variables = {"MOONCAKE_CONFIG_PATH": str(config)}
    extra = {"save_decode_cache": True}
    return Beside(Mooncake(settings), _engine("MooncakeStoreConnector", extra), variables)


def _lmcache(settings: Any, home: Path) -> Beside:
    from lmcache_store import PORT, Lmcache

    del home
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": PORT,
             "lmcache.mp.save_decode_cache": True}  # fmt: skip
    return Beside(Lmcache(settings), _engine("LMCacheMPConnector", extra), {})


def _engine(connector: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"kv_transfer_config": {"kv_connector": connector, "kv_role": "kv_both",
                                   "kv_connector_extra_config": extra}}  # fmt: skip


def _let_numba_be() -> None:
    """vLLM 0.32.0 for CPUs looks for kernels in vars() of all that modules hold, and takes the
    result for a dictionary. LMCache imports numba and with it llvmlite, one object of which returns
    something else, and the engine would end there. In this process vLLM skips that object; no file
    is changed."""
    from vllm.triton_utils import dispatcher

    def attributes(value: Any) -> Mapping[str, Any]:
        found = vars(value)
        return found if isinstance(found, Mapping) else {}

    dispatcher.vars = attributes


def variables_of(mode: str, plain: dict[str, str], peers: dict[str, Beside]) -> dict[str, str]:
    """The environment of an engine; for a peer it includes the variables that the peer's servers
    were started with."""
    return {**os.environ, **peers[mode].variables} if mode in peers else plain
