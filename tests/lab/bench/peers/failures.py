"""The rows about failures, each tried for real: processes are killed, memory runs out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store import Failed, Request, Store, System

BLOCK = 1 << 20
STORED = 16
POOL_BYTES = 256 << 20
_PRESSED = 384  # blocks, half as many again as the pool holds
_SETTLED_S = 2.0  # time for what a system does after it has answered
_PATIENCE_S = 25.0
_ENDLESS_FROM, _LAST = 10_000, 32

Tell = Callable[[dict[str, Any]], None]


def hold(store: Store, say: Callable[[str], None]) -> None:
    """The process that is killed: it has stored its blocks."""
    for number in range(STORED):
        put(store, number)
    say("stored")
    signal.pause()


def endless(store: Store, say: Callable[[str], None], progress: Path) -> None:
    """The process that is killed while it stores. It writes down how far it has come."""
    number = _ENDLESS_FROM
    with progress.open("wb", buffering=0) as file:
        os.pwrite(file.fileno(), _written(number), 0)
        say("storing")
        while True:
            os.pwrite(file.fileno(), _written(number), 0)  # whole, even if it is killed
            put(store, number)
            number += 1


def storer_killed(
    system: System, start_storer: Callable[[str], int], progress: Path, tell: Tell
) -> None:
    store = system.open(BLOCK, 4)
    os.kill(start_storer("hold"), signal.SIGKILL)
    killed = time.monotonic()
    false_for, wrong, right = 0.0, 0, 0
    while time.monotonic() - killed < _PATIENCE_S:
        false, right = 0, 0
        for number in range(STORED):
            outcome = look(store, number)
            false += outcome == "refused"
            wrong += outcome == "wrong"
            right += outcome == "right"
        if false:
            false_for = time.monotonic() - killed
        elif time.monotonic() - killed > _SETTLED_S:
            break
        time.sleep(0.1)
    tell({"row": "storer killed", "false_yes_s": false_for, "wrong": wrong, "right": right,
          "of": STORED})  # fmt: skip
    os.kill(start_storer("endless"), signal.SIGKILL)
    last = int.from_bytes(progress.read_bytes(), "little")
    first = max(_ENDLESS_FROM, last - _LAST)
    outcomes = [look(store, number) for number in range(first, last + 1)]
    tell({"row": "killed while it stores", **{each: outcomes.count(each) for each in
          ("right", "wrong", "refused")}})  # fmt: skip


def server_killed(system: System, tell: Tell) -> None:
    store = system.open(BLOCK, 4)
    for number in range(STORED):
        put(store, number)
    os.kill(system.server(), signal.SIGKILL)
    for turn in ("first", "second"):
        for name in ("lookup", "load", "store"):
            begin = time.monotonic()
            with store.request([1]) as request:
                try:
                    call(request, name)
                    said = "done"
                except Exception as error:
                    said = str(error) or type(error).__name__
                took = time.monotonic() - begin
            tell({"row": "server killed", "call": name, "turn": turn, "s": took, "said": said})


def call(request: Request, name: str) -> None:
    if name == "lookup":
        request.found()
    elif name == "load":
        request.load([2])
    else:
        request.store([0])


def server_restarted(system: System, read_again: Callable[[], dict[str, Any]], tell: Tell) -> None:
    store = system.open(BLOCK, 4)
    for number in range(STORED):
        put(store, number)
    time.sleep(_SETTLED_S)
    os.kill(system.server(), signal.SIGKILL)
    killed = time.monotonic()
    system.restart()
    back = time.monotonic() - killed
    tell({"row": "server restarted", "back_s": back, "of": STORED, **read_again()})


def read(open_store: Callable[[], Store]) -> dict[str, Any]:
    """What a new process finds. It looks until it has found everything, or for long enough."""
    begin = time.monotonic()
    store = None
    outcomes: list[str] = []
    while time.monotonic() - begin < _PATIENCE_S and outcomes.count("right") < STORED:
        try:
            store = store or open_store()
            outcomes = [look(store, number) for number in range(STORED)]
        except Failed:
            outcomes = []
        time.sleep(0.2)
    return {each: outcomes.count(each) for each in ("right", "wrong", "refused")}


def pressure(system: System, tell: Tell) -> None:
    store = system.open(BLOCK, 4)
    for kept in (False, True) if system.can_keep else (False,):
        acknowledged, refused = [], 0
        for number in range(_PRESSED):
            try:
                put(store, number, kept)
                acknowledged.append(number)
            except Failed:
                refused += 1
        time.sleep(_SETTLED_S)
        outcomes = [look(store, number) for number in acknowledged]
        tell({"row": "pressure, kept" if kept else "pressure", "asked": _PRESSED,
              "acknowledged": len(acknowledged), "refused": refused,
              "right": outcomes.count("right"), "wrong": outcomes.count("wrong"),
              "gone": outcomes.count("no") + outcomes.count("refused")})  # fmt: skip
        store.forget()


def put(store: Store, number: int, kept: bool = False) -> None:
    store.fill(0, number)
    with store.request([number]) as request:
        request.store([0], kept)


def _written(number: int) -> bytes:
    return number.to_bytes(8, "little")


def look(store: Store, number: int) -> str:
    """no, right, wrong (bytes), or refused: the block is said to be there, but is not loaded."""
    store.fill(2, 0)
    with store.request([number]) as request:
        try:
            if request.found() == 0:
                return "no"
        except Failed:
            return "no"
        try:
            request.load([2])
        except Failed:
            return "refused"
    return "right" if store.holds(2, number) else "wrong"
