"""What kvd's planner says about the layers of running requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import kvd_client

from kvd_vllm.layers.placement import Running

_STEPS = 32  # a plan has room for so many: kvd's placement.window_min
_TIMEOUT_S = 0.05  # a step waits no longer
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 60.0
_SHARE = 0.2  # the weight of a new step in the mean time of steps


class Plans:
    """Asks kvd, which answers with the plan made after the last question, and makes the next one: a step
    does not wait for it. Asks after one step, two, four, and so on, and anew where other requests run.
    Requests that compute several tokens at once are in no plan; room for one of their layers is left.

    `ask`: Client.place_layers; its arguments but for `layers`, tokens, room, time and timeout are given. Use
    it on the worker's main thread.
    """

    def __init__(self, ask: Callable[..., kvd_client.Placement], layers: int) -> None:
        self._ask = ask
        self._layers = layers
        self._batch: frozenset[str] = frozenset()
        self._ids: dict[str, int] = {}  # kvd's by vLLM's
        self._last_id = 0
        self._steps = 0  # since the batch has been this one
        self._step_s = 0.0
        self._retry_s = _FIRST_RETRY_S
        self._retry_at = 0.0  # kvd did not answer: when it is asked again
        self._distances: Mapping[str, int] = {}

    def computed(self, requests: Sequence[Running], step_s: float) -> None:
        """How long a step took, waits for copies left out."""
        if requests and all(each.after - each.before == 1 for each in requests):
            self._step_s += (step_s - self._step_s) * (_SHARE if self._step_s else 1)

    def distances(self, requests: Sequence[Running], pages: int, is_away: bool) -> Mapping[str, int]:
        """Before a step that has these `pages`. `is_away`: kvd is not asked. Empty where nothing is known."""
        tokens = {each.request: each.after for each in requests if each.after - each.before == 1}
        others = (len(each.names) + 2 * self._layers for each in requests if each.request not in tokens)
        is_new = tokens.keys() != self._batch
        if is_new:
            self._batch, self._steps = frozenset(tokens), 0
            self._ids = {name: self._ids.get(name) or self._new_id() for name in tokens}
        steps, self._steps = self._steps, self._steps + 1
        # Once a plan is old it takes two questions to get a new one.
        is_due = steps & (steps - 1) == 0 if steps < _STEPS else steps % _STEPS < 2
        if self._step_s and (is_due if tokens else is_new):
            self._distances = {} if is_away else self._answer(tokens, max(0, pages - sum(others)))
        return self._distances

    def _answer(self, tokens: Mapping[str, int], pages: int) -> Mapping[str, int]:
        if time.monotonic() < self._retry_at:
            return {}
        names = {number: name for name, number in self._ids.items()}
        try:
            plan = self._ask(
                {self._ids[name]: count for name, count in tokens.items()}, layers=self._layers,
                capacity_blocks=pages, step_ns=max(1, round(self._step_s * 1e9)), timeout=_TIMEOUT_S,
            )  # fmt: skip
        except kvd_client.KvdError:
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
            return {}
        self._retry_s = _FIRST_RETRY_S
        return {names[each.request]: each.distance for each in plan.entries if each.request in names}

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id
