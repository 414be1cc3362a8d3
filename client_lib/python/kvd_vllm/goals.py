"""What a request asks for in vllm_xargs of the API: its goals, and what is to be kept after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import kvd_client
from kvd_client import Hint

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.kvd_vllm")

NS = 1_000_000_000
_LONGEST_S = 3600.0


class Goals(NamedTuple):
    """0: the goal of its SLO class."""

    ttft_ns: int = 0
    tbt_ns: int = 0
    slo_class: int = 0
    gap_ns: int = 0


def goals_of(request: Request) -> Goals:
    """kvd_ttft_s, kvd_tbt_s and kvd_gap_s in seconds, kvd_slo_class by its name."""
    given = _given(request)
    name = given.get("kvd_slo_class")
    return Goals(
        _goal(given, "kvd_ttft_s"),
        _goal(given, "kvd_tbt_s"),
        kvd_client.slo_class(name) if isinstance(name, str) and name else 0,
        _goal(given, "kvd_gap_s"),
    )


class Wish(NamedTuple):
    """What is to become of blocks of a request; seconds: of a retention and a prefetch."""

    hint: Hint
    seconds: float = 0.0

    @property
    def keeps(self) -> bool:
        return self.hint == Hint.PIN or (self.hint == Hint.RETAIN and self.seconds > 0)


_AFTERWARDS = {each.name.lower(): each for each in Hint if each != Hint.PREFETCH}


def wish_after(request: Request) -> Wish | None:
    """What is to become of what the request leaves: kvd_retain_s in seconds, where 0 is no longer than
    anything else, kvd_pin, kvd_demote, or the hint of an orchestrator (Request.kv_hints), an action whose
    type is the name of a Hint. The first that is said counts; None: nothing is."""
    given = _given(request)
    seconds = _seconds(given, "kvd_retain_s")
    if seconds is not None:
        return Wish(Hint.RETAIN, seconds)
    # vLLM's API makes numbers of true and false.
    if given.get("kvd_pin") in (0, 1):
        return Wish(Hint.PIN if given["kvd_pin"] else Hint.UNPIN)
    if given.get("kvd_demote") == 1:
        return Wish(Hint.DEMOTE)
    for action in _actions(request):
        hint = _AFTERWARDS.get(action.action_type)
        seconds = _seconds(action.payload, "ttl_s") if hint == Hint.RETAIN else 0.0
        if hint is not None and seconds is not None:
            return Wish(hint, seconds)
    return None


def prefetch_s(request: Request) -> float | None:
    """How long the prompt is wanted in kvd's DRAM from the request's arrival on, also what only kvd's
    disk has: kvd_prefetch_s in seconds, or an action "prefetch" whose payload has `ttl_s`."""
    said = _seconds(_given(request), "kvd_prefetch_s")
    for action in _actions(request):
        if said is None and action.action_type == "prefetch":
            said = _seconds(action.payload, "ttl_s")
    return said or None


def _given(request: Request) -> dict[str, Any]:
    parameters = request.sampling_params
    return (parameters.extra_args if parameters is not None else None) or {}


def _actions(request: Request) -> Sequence[Any]:
    hints = getattr(request, "kv_hints", None)
    return hints.actions if hints is not None else ()


def _goal(given: dict[str, Any], name: str) -> int:
    return int((_seconds(given, name) or 0.0) * NS)


def _seconds(given: dict[str, Any], name: str) -> float | None:
    if given.get(name) is None:
        return None
    try:
        seconds = float(given[name])
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_S:
        logger.warning("kvd: %s=%r is no time from 0 to 3600 s: not used", name, given[name])
        return None
    return seconds
