"""Prefill and decode apart: what one engine leaves in kvd for another that goes on with a prompt.

A router sends a prompt to a prefill engine, for one token, and then to a decode engine, with the
kv_transfer_params that the first one answered. Full blocks are found as those of any prompt are. The
block that the prompt ends in has a name that only this answer tells. kvd keeps it until the decode
engine has it, or for a time.
"""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vllm.v1.request import Request, RequestStatus

# How long the decode engine waits for the prefill engine's copies to end.
WAIT_S = 2.0
# How soon a drop that kvd did not hear of is tried again.
_RETRY_S = 1.0
# How many prompts are kept at a time.
_MOST_KEPT = 16_384
_SECRET_BYTES = 16


class Handoff(NamedTuple):
    """A prompt of so many tokens, and what the name of its last block is made of."""

    secret: bytes
    tokens: int


def params_of(request: Request) -> Mapping[str, Any]:
    """Its kv_transfer_params, which a client may have written: any value may be anything."""
    return request.kv_transfer_params or {}


def is_wanted(request: Request) -> bool:
    """Whether another engine goes on with the request: it ends here because it was to have one token."""
    wanted = params_of(request).get("do_remote_decode") is True
    wanted = wanted and request.prompt_token_ids is not None
    return wanted and request.status == RequestStatus.FINISHED_LENGTH_CAPPED


def make(request: Request) -> Handoff:
    return Handoff(secrets.token_bytes(_SECRET_BYTES), request.num_prompt_tokens)


def answer(handoff: Handoff) -> dict[str, Any]:
    """The kv_transfer_params for the decode engine; read() is what reads them there."""
    return {
        "do_remote_prefill": True, "do_remote_decode": False,
        "kvd": {"secret": handoff.secret.hex(), "tokens": handoff.tokens},
    }  # fmt: skip


def read(request: Request) -> Handoff | None:
    """What a router says of the request; None: nothing, or nothing that can be meant for it."""
    params = params_of(request)
    given = params.get("kvd")
    if params.get("do_remote_prefill") is not True or not isinstance(given, dict):
        return None
    secret, tokens = given.get("secret"), given.get("tokens")
    if not isinstance(secret, str) or type(tokens) is not int or tokens != request.num_prompt_tokens \
            or request.prompt_token_ids is None:  # fmt: skip
        return None
    try:
        handoff = Handoff(bytes.fromhex(secret), tokens)
    except ValueError:
        return None
    return handoff if len(handoff.secret) == _SECRET_BYTES else None


class Deadlines:
    """Drops names once their time is over, by a thread of its own: an idle engine makes no steps.

    Owner: has_room(), keep() and close() are the scheduler's; `drop` is called by the thread."""

    def __init__(
        self,
        drop: Callable[[Sequence[bytes]], int],
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drop = drop
        self._keep_s = keep_s
        self._clock = clock
        self._changed = threading.Condition()
        self._kept: list[tuple[float, list[bytes]]] = []  # a heap
        self._closed = False
        self._thread: threading.Thread | None = None

    def has_room(self) -> bool:
        """Whether one more may be kept. What has no deadline would stay in kvd until this engine ends."""
        with self._changed:
            return len(self._kept) < _MOST_KEPT

    def keep(self, names: list[bytes]) -> None:
        self._keep(names, self._keep_s)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kvd-handoffs", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """What is kept ends with the engine's session."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._is_due():
                    left = self._kept[0][0] - self._clock() if self._kept else None
                    self._changed.wait(left)
                if self._closed:
                    return
                _, names = heapq.heappop(self._kept)
            if self._drop(names) == 0:
                self._keep(names, _RETRY_S)

    def _keep(self, names: list[bytes], time_s: float) -> None:
        with self._changed:
            heapq.heappush(self._kept, (self._clock() + time_s, names))
            self._changed.notify()

    def _is_due(self) -> bool:
        return bool(self._kept) and self._kept[0][0] <= self._clock()
