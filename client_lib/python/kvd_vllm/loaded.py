"""What a worker has loaded now: the weights and the LoRA adapters, by content. A running engine may
be given others, by calls that a connector does not hear of. This code runs on the worker's main
thread, as such calls do, so nothing changes while a step is under way."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from kvd_vllm import identity
from kvd_vllm.doors.callers import callers
from kvd_vllm.glances import Glances, Look
from kvd_vllm.identity import UNEXPECTED, NoIdentity
from kvd_vllm.memory import logger
from kvd_vllm.transfers import Adapter, AdapterKey, Copy, Ends, key_of

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

# A look costs at most a hundredth of the time while steps follow each other, and at most a third of
# a pause between two steps: writing all weights takes longer than such a pause. It takes some time
# for each tensor, too: with asynchronous scheduling a pause is as long as a step of the GPU.
_BUSY, _PAUSE, _TENSOR_S = 100, 2, 20e-6


def runner_of_caller() -> Any:
    """The model runner of the worker that calls a connector; None: there is none. vLLM gives a
    connector only the KV cache, and its worker makes that call itself."""
    runners = (getattr(owner, "model_runner", None) for owner in callers())
    return next((each for each in runners if callable(getattr(each, "get_model", None))), None)


def models_of(runner: Any) -> dict[str, nn.Module]:
    """The models that compute KV: the model itself, and a draft model, whose layers may be in the
    same blocks."""
    draft = getattr(runner, "get_draft_model", None)
    model = runner.get_model() if runner is not None else None
    found = {"model": model, "draft": draft() if draft else None}
    return {name: model for name, model in found.items() if isinstance(model, nn.Module)}


class Weights:
    """`now` is the identity of the weights, taken by `take`, which may raise NoIdentity. `changes`
    grows whenever they were seen to change."""

    def __init__(
        self, first: str, take: Callable[[], str], glances: Glances,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.now = first
        self.changes = 0
        self._take = take
        self._glances = glances
        self._clock = clock
        # How long it takes to begin a look: the last, and the fastest.
        self._cost_s = self._least_cost_s = math.inf
        self._looks: deque[Look] = deque()
        self._note()
        self._look()
        self._looked = self._stepped = clock()
        self.settle()

    def step_begins(self, look: bool) -> None:
        """`look`: looks at all of them."""
        self.settle()
        now = self._clock()
        written_s = max(_PAUSE * self._least_cost_s, _TENSOR_S * self._glances.count)
        paused = now - self._stepped > written_s
        if not look and not paused and now - self._looked < _BUSY * self._cost_s:
            return
        if look:
            self._take_anew(is_changed=False)
        else:
            self._look()
            self.settle()
        self._looked = self._clock()

    def step_ends(self) -> None:
        self._stepped = self._clock()

    def settle(self) -> None:
        """Takes in the looks that have come. On a GPU one comes before anything that the GPU is given
        after it."""
        while self._looks and self._looks[0].has_come():
            if _sees_change(self._looks.popleft()):
                self._take_anew(is_changed=True)

    def _look(self) -> None:
        begin = self._clock()
        try:
            self._looks.append(self._glances.begin())
        except UNEXPECTED:
            self._take_anew(is_changed=True)
        finally:
            self._cost_s = self._clock() - begin
            self._least_cost_s = min(self._least_cost_s, self._cost_s)

    def _take_anew(self, is_changed: bool) -> None:
        self._looks.clear()
        before, self.now = self.now, self._taken()
        self.changes += is_changed or self.now != before
        self._note()

    def _note(self) -> None:
        with contextlib.suppress(*UNEXPECTED):
            self._glances.note()

    def _taken(self) -> str:
        try:
            return self._take()
        except (NoIdentity, *UNEXPECTED) as fault:
            return identity.private(str(fault))


def _sees_change(look: Look) -> bool:
    try:
        return look.is_changed()
    except UNEXPECTED:
        return True


def weights_in(runner: Any, first: str) -> Weights:
    """The weights of a model runner's models. `first`: the identity that was taken of them."""
    glances = Glances(lambda: identity.parts_of(models_of(runner)))
    return Weights(first, lambda: identity.weights_of(models_of(runner)), glances)


class Adapters:
    """The LoRA adapters of a worker. `find`: returns what is there under an id, or loads it where
    that is asked for; None: nothing. `present`: the ids of those that are there."""

    def __init__(
        self, find: Callable[[LoRARequest, bool], Any], present: Callable[[], Iterable[int]]
    ) -> None:
        self._find = find
        self._present = present
        self._seen: dict[int, dict[AdapterKey, LoRARequest]] = {}  # by id
        self._known: dict[AdapterKey, Adapter] = {}
        self._objects: dict[AdapterKey, weakref.ref[Any]] = {}
        self._loads = 0

    def look(self, lora: LoRARequest, load: bool = False) -> Adapter | None:
        """The content that is loaded now. `load`: it is loaded for that."""
        key = key_of(lora)
        found = self._find(lora, load)
        if found is None:
            return None
        before = self._objects.get(key)
        if before is None or before() is not found:
            self._objects[key] = weakref.ref(found)
            self._seen.setdefault(lora.lora_int_id, {})[key] = lora
            content = _content_of(found, lora)
            known = self._known.get(key)
            if known is None or known.content != content:
                self._loads += 1
                self._known[key] = Adapter(self._loads, content)
        return self._known[key]

    def look_again(self) -> dict[AdapterKey, Adapter]:
        """The adapters that have changed since the last look. It runs after each step, because an
        adapter may change back to its earlier content before the next one."""
        changed: dict[AdapterKey, Adapter] = {}
        for number in self._present():
            for key, lora in self._seen.get(number, {}).items():
                before, found = self._known[key], self.look(lora)
                if found is not None and found != before:
                    changed[key] = found
        return changed


def _content_of(adapter: Any, lora: LoRARequest) -> bytes:
    try:
        return identity.adapter_of(adapter)
    except (NoIdentity, *UNEXPECTED) as fault:
        logger.warning(
            "kvd: blocks of the adapter %s are not shared beyond this engine: %s", lora.lora_name, fault
        )
        return identity.random_content()


def adapters_in(runner: Any) -> Adapters:
    """The adapters of a model runner with vLLM's LoRA manager. An adapter is loaded as vLLM would
    load it in the step that needs it. If it cannot be loaded, vLLM reports that itself."""

    def find(lora: LoRARequest, load: bool) -> Any:
        try:
            manager = runner.lora_manager
            if lora.lora_int_id not in manager.list_adapters():
                if not load:
                    return None
                runner.add_lora(lora)
            return manager._adapter_manager.get_adapter(lora.lora_int_id)
        except Exception as fault:
            logger.warning("kvd: the content of the adapter %s cannot be told: %s", lora.lora_name, fault)
            return None

    def present() -> Iterable[int]:
        manager = getattr(runner, "lora_manager", None)
        return manager.list_adapters() if manager is not None else ()

    return Adapters(find, present)


class Loaded:
    """Compares a worker's weights and adapters with what the scheduler's side takes them for.
    `name`: the name of the cache, which that side is told first, with the weights that it stands for."""

    def __init__(self, name: str, weights: Weights, adapters: Adapters) -> None:
        self._name = name
        self._named_by = weights.now
        self._weights = weights
        self._adapters = adapters
        self._asked: dict[AdapterKey, LoRARequest] = {}
        self._changed: dict[AdapterKey, Adapter] = {}
        self._taken_for = ""
        self._tell_weights = False

    def step_begins(self, weights: str, look: bool, asked: Iterable[LoRARequest]) -> None:
        self._weights.step_begins(look)
        self._tell_weights |= look or weights != self._weights.now
        self._taken_for = weights
        self._asked.update((key_of(lora), lora) for lora in asked)
        self._answer()

    def _answer(self) -> None:
        """Answers about adapters. At most one of them is loaded for that in a step, in the way vLLM
        loads the adapters of a step: many that wait for their turn would hold the step up, and push
        out those that run."""
        may_load = True
        for key, lora in list(self._asked.items()):
            found = self._adapters.look(lora)
            if found is None and may_load:
                may_load = False
                found = self._adapters.look(lora, load=True) or Adapter(0, identity.random_content())
            if found is not None:
                self._changed[key] = found
                del self._asked[key]

    def step_ends(self) -> None:
        self._weights.step_ends()
        self._changed.update(self._adapters.look_again())

    def judge(self) -> Callable[[Copy], bool]:
        """Says of this step's copies whether the names of their blocks stand for what this worker
        computes. On a GPU it may be asked once the work that the GPU was given before is done."""
        weights, changes = self._taken_for, self._weights.changes

        def is_right(copy: Copy) -> bool:
            if not copy.shared:
                return True
            self._weights.settle()
            right = weights == self._weights.now and changes == self._weights.changes
            if copy.lora is None:
                return right
            found = self._adapters.look(copy.lora)
            if found is not None and found != copy.adapter:
                self._changed[key_of(copy.lora)] = found
            return right and found is not None and found == copy.adapter

        return is_right

    def add_to(self, ends: Ends | None) -> Ends | None:
        """Adds what the scheduler's side does not know yet."""
        if not self._name and not self._tell_weights and not self._changed:
            return ends
        told = ends or Ends()
        told.model, told.named_by, self._name, self._named_by = self._name, self._named_by, "", ""
        if self._tell_weights:
            told.weights, self._tell_weights = self._weights.now, False
        told.adapters, self._changed = self._changed, {}
        return told
