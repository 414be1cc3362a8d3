"""What kvd's planner says about the layers of running requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import kvd_client

from kvd_vllm.layers.placement import Running

_STEPS = 32  # that a plan has room for: kvd's placement.window_min
_SHORT_S = 0.05
_SHARE = 0.2  # of a new step in the mean of what steps took


class Plans:
    """Asks kvd, which makes a plan meanwhile and never lets a step wait for it: again after one step, two,
    four, and so on, and anew where other requests run. Requests that compute their prompts are in no plan.

    `ask`: Client.place_layers without its first three arguments but the tokens. Use it on the worker's main
    thread.
    """

    def __init__(self, ask: Callable[..., kvd_client.Placement]) -> None:
        self._ask = ask
        self._batch: frozenset[str] = frozenset()
        self._ids: dict[str, int] = {}  # kvd's by vLLM's
        self._last_id = 0
        self._steps = 0  # since the batch has been this one
        self._step_s = 0.0
        self._distances: Mapping[str, int] = {}

    def computed(self, requests: Sequence[Running], step_s: float) -> None:
        """How long a step took, waits for layers left out."""
        if requests and all(each.after - each.before == 1 for each in requests):
            self._step_s += (step_s - self._step_s) * (_SHARE if self._step_s else 1)

    def distances(self, requests: Sequence[Running], pages: int, is_away: bool) -> Mapping[str, int]:
        """Before a step that has these `pages`. `is_away`: kvd is not asked. Empty where nothing is known."""
        tokens = {each.request: each.after for each in requests if each.after - each.before == 1}
        if tokens.keys() != self._batch:
            self._batch, self._steps = frozenset(tokens), 0
            self._ids = {name: self._ids.get(name) or self._new_id() for name in tokens}
        steps, self._steps = self._steps, self._steps + 1
        is_due = steps & (steps - 1) == 0 if steps < _STEPS else steps % _STEPS == 0
        if tokens and self._step_s and is_due:
            self._distances = {} if is_away else self._answer(tokens, pages)
        return self._distances

    def _answer(self, tokens: Mapping[str, int], pages: int) -> Mapping[str, int]:
        names = {number: name for name, number in self._ids.items()}
        try:
            plan = self._ask(
                {self._ids[name]: count for name, count in tokens.items()}, capacity_blocks=pages,
                step_ns=max(1, round(self._step_s * 1e9)), timeout=_SHORT_S,
            )  # fmt: skip
        except kvd_client.KvdError:
            return {}
        return {names[each.request]: each.distance for each in plan.entries if each.request in names}

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id
