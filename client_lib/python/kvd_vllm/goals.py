"""What a request asks for in vllm_xargs of the API: its goals, and what is to be kept after it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import kvd_client

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
    parameters = request.sampling_params
    given = (parameters.extra_args if parameters is not None else None) or {}
    name = given.get("kvd_slo_class")
    return Goals(
        _goal(given, "kvd_ttft_s"),
        _goal(given, "kvd_tbt_s"),
        kvd_client.slo_class(name) if isinstance(name, str) and name else 0,
        _goal(given, "kvd_gap_s"),
    )


def retain_s(request: Request) -> float | None:
    """How long what the request leaves is wanted after its end: kvd_retain_s in seconds, or the hint
    of an orchestrator (Request.kv_hints), an action "retain" whose payload has `ttl_s`. 0: no longer
    than anything else; None: nothing is said."""
    parameters = request.sampling_params
    given = (parameters.extra_args if parameters is not None else None) or {}
    said = _seconds(given, "kvd_retain_s")
    hints = getattr(request, "kv_hints", None)
    for action in hints.actions if hints is not None else ():
        if said is None and action.action_type == "retain":
            said = _seconds(action.payload, "ttl_s")
    return said


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
