"""The goals that a request asks for in vllm_xargs of the API."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import kvd_client

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.kvd_vllm")

NS = 1_000_000_000
_LONGEST_GOAL_S = 3600.0


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


def _goal(given: dict[str, Any], name: str) -> int:
    try:
        seconds = float(given.get(name) or 0.0)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_GOAL_S:
        logger.warning("kvd: %s=%r is no time from 0 to 3600 s: not used", name, given[name])
        return 0
    return int(seconds * NS)
