"""What a block is called, on the scheduler's side: vLLM's hash of its tokens, and what this engine
computes with beyond the weights that name its cache.

vLLM's hash includes the name and the path of a LoRA adapter, which say nothing of its content. Here
the content takes their place. A name is good for a request as long as the worker has the content
that the name stands for. vLLM may identify an image by a name that a client made up, so the bytes
that the model is given of it count, too.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kvd_vllm.groups import Place
from kvd_vllm.identity import UNEXPECTED, NoIdentity, tensors_of
from kvd_vllm.layout import digest_of
from kvd_vllm.memory import logger
from kvd_vllm.transfers import NEXT, Adapter, AdapterKey, Copy, Ends, Transfers, key_of

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

# vLLM's identifier of an image, or of other input that is no text, if vLLM has hashed its content;
# the name of an adapter may stand before the hash.
_HASHED = re.compile(r"(.*:)?([0-9a-f]{64}|[0-9a-f]{128})", re.DOTALL)
# How many names of images are remembered: far more than vLLM keeps anything of.
_MOST_IMAGES = 65536


class _Images(NamedTuple):
    """All parts of a request that are no text."""

    number: int
    offsets: list[int]  # in tokens, ascending
    # The names of these parts, by how many of them a block reaches; None: their contents cannot be told apart.
    contents: list[bytes] | None


class _WithoutAdapter:
    """A request as vLLM's hasher reads it, without its adapter; with the hashes that result."""

    lora_request = None

    def __init__(self, request: Request) -> None:
        self._request = request
        self.block_hashes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def hashes(self) -> list[bytes]:
        """The hashes of all full blocks that the request has now."""
        if self._request.resumable:
            self.block_hashes.clear()  # a session may take tokens back
        hasher = self._request._block_hasher
        if hasher is not None:
            self.block_hashes += hasher(self)
        return self.block_hashes


class Names:
    """`patience_s`: how long a request waits until the worker has said what its adapter is."""

    def __init__(
        self, groups: int, block_tokens: int, clock: Callable[[], float], patience_s: float
    ) -> None:
        self._groups = groups
        self._block_tokens = block_tokens
        self._clock = clock
        self._patience_s = patience_s
        self._cleared = b""  # changes each time that earlier results must not be found again
        self._first = self._weights = ""
        # Whether vLLM now computes with these weights alone; None: the worker is asked.
        self._is_pure: bool | None = None
        self._look = False
        self._known: dict[AdapterKey, Adapter] = {}
        self._asked: dict[AdapterKey, LoRARequest] = {}
        # Maps an adapter, as vLLM's own prefix cache tells adapters apart, to all contents that it has
        # had since that cache was emptied.
        self._contents: dict[tuple[str, str], set[bytes]] = {}
        self._waits_since: float | None = None
        self._loras: dict[str, tuple[AdapterKey, float]] = {}  # by request, and since when
        # The adapter as it was when the request was first looked up; None: its blocks are of more
        # than one kind.
        self._pins: dict[str, Adapter | None] = {}
        self._views: dict[str, _WithoutAdapter] = {}
        self._images: dict[str, _Images] = {}
        # By vLLM's identifier; None: two images had it, and vLLM may compute with either.
        self._known_images: OrderedDict[str, bytes | None] = OrderedDict()

    def add(self, request: Request) -> None:
        if request.lora_request is not None:
            key = key_of(request.lora_request)
            self._asked[key] = request.lora_request
            self._loras[request.request_id] = key, self._clock()

    def finish(self, name: str) -> None:
        self._loras.pop(name, None)
        self._pins.pop(name, None)
        self._views.pop(name, None)
        self._images.pop(name, None)

    def may_share(self, request: Request, local: int) -> bool | None:
        """Whether blocks of the request are found and stored under names that others know; None:
        not known yet. `local`: tokens of the request that vLLM's own prefix cache has."""
        if request.mm_features and self._images_in(request).contents is None:
            return False
        if self._is_pure is None:
            self._waits_since = self._waits_since or self._clock()
            return self._not_yet(self._waits_since)
        name = request.request_id
        if not self._is_pure or request.lora_request is None or name not in self._loras:
            return self._is_pure and request.lora_request is None
        key, since = self._loras[name]
        if name not in self._pins:
            known = self._known.get(key)
            if known is None:
                return self._not_yet(since)
            # The blocks that vLLM has of it may be of another content.
            is_mixed = local > 0 and len(self._contents[key[1:]]) > 1
            self._pins[name] = None if is_mixed else known
        return self._pins[name] is not None

    def _not_yet(self, since: float) -> bool | None:
        return None if self._clock() < since + self._patience_s else False

    @property
    def are_of_several(self) -> bool:
        """Whether blocks have the weights of several workers in their names."""
        return NEXT in self._weights

    @property
    def is_plain(self) -> bool:
        """Whether blocks have the names that they have for an engine that has just been started."""
        return not self._cleared and self._weights == self._first

    def lora_told(self, request: Request) -> str | None:
        """The adapter that routers are told with the request's tokens; empty: there is none. None: they are told
        nothing, since whoever sends the same tokens would not find these blocks."""
        if request.cache_salt or request.mm_features or request.prompt_embeds is not None or not self.is_plain:
            return None
        return request.lora_request.lora_name if request.lora_request is not None else ""

    def count(self, request: Request) -> int:
        """How many full blocks have a name."""
        return len(self._hashes(request))

    def tail(self, request: Request, tokens: int, secret: bytes) -> list[bytes]:
        """Names, by group, of the block that the first `tokens` tokens of the prompt end in. Whoever
        knows the secret gives the block of the same prompt the same names."""
        at = (tokens - 1) // self._block_tokens
        assert request.prompt_token_ids is not None
        within = request.prompt_token_ids[at * self._block_tokens : tokens]
        seen = repr((secret, within, request.cache_salt)).encode()
        if request.mm_features:
            seen += self._reached(self._images_in(request), at)
        groups = range(self._groups)
        # What comes before is in the name of the block before.
        before = self.digests(request, [(group, at - 1) for group in groups] if at else [])
        heads = before or self._salts(request)
        return [digest_of(b"kvd_vllm tail" + heads[group] + digest_of(seen)) for group in groups]

    def digests(self, request: Request, places: Iterable[Place]) -> list[bytes]:
        """The names that every engine gives these blocks; each group has others."""
        salts = self._salts(request)
        hashes = self._hashes(request)
        if not request.mm_features:
            return [digest_of(salts[group] + hashes[at]) for group, at in places]
        images = self._images_in(request)
        return [
            digest_of(salts[group] + self._reached(images, at) + hashes[at]) for group, at in places
        ]

    def _salts(self, request: Request) -> list[bytes]:
        """What keeps blocks of equal tokens apart, by group."""
        salt = self._cleared + (self._weights.encode() if self._weights != self._first else b"")
        if request.lora_request is not None:
            pin = self._pins.get(request.request_id)
            salt += pin.content if pin is not None else uuid.uuid4().bytes
        return [salt + bytes([at] if at else []) for at in range(self._groups)]

    def _reached(self, images: _Images, block: int) -> bytes:
        if images.contents is None:
            return uuid.uuid4().bytes
        return images.contents[bisect_left(images.offsets, (block + 1) * self._block_tokens)]

    def _images_in(self, request: Request) -> _Images:
        known = self._images.get(request.request_id)
        count = len(request.mm_features)
        if known is None or known.number != count:
            known = _Images(count, [each.mm_position.offset for each in request.mm_features],
                            self._contents_in(request))  # fmt: skip
            self._images[request.request_id] = known
        return known

    def _contents_in(self, request: Request) -> list[bytes] | None:
        contents = [b""]
        for each in request.mm_features:
            # Otherwise it is a number of this process, or a name that the client made up.
            content = self._content_of(each) if _HASHED.fullmatch(each.identifier) else None
            if content is None:
                return None
            contents.append(digest_of(contents[-1] + content))
        return contents

    def _content_of(self, image: Any) -> bytes | None:
        """None: it cannot be told, or vLLM may have another image of that name."""
        try:
            content: bytes | None = tensors_of(image.data)
        except (NoIdentity, *UNEXPECTED):
            return None
        known = self._known_images.pop(image.identifier, content)
        self._known_images[image.identifier] = content if known == content else None
        if len(self._known_images) > _MOST_IMAGES:
            self._known_images.popitem(last=False)
        return self._known_images[image.identifier]

    def mark(self, copy: Copy, request: Request) -> None:
        """Notes that a copy goes by these names."""
        copy.shared = True
        copy.lora = request.lora_request
        copy.adapter = self._pins.get(request.request_id)

    def reset(self) -> None:
        """vLLM's prefix cache is empty: everything computed from now on is of one kind, which the
        worker is asked for."""
        self._is_pure, self._look, self._waits_since = None, True, None
        self._contents = {}
        for key, each in self._known.items():
            self._contents.setdefault(key[1:], set()).add(each.content)

    def clear(self) -> None:
        """Earlier results must not be found again."""
        self._cleared = uuid.uuid4().bytes

    def ask(self, transfers: Transfers, may_look: bool) -> None:
        """Asks with a step. Without `may_look` nothing is computed and no request waits for an
        answer, as in an engine that sleeps, whose weights are not there to be looked at."""
        transfers.weights = self._weights
        transfers.look = self._look and may_look
        self._look = self._look and not may_look
        transfers.adapters, self._asked = list(self._asked.values()), {}

    def hear(self, ends: Ends) -> None:
        """Takes the worker's answer, or its news."""
        for key, adapter in ends.adapters.items():
            self._known[key] = adapter
            self._contents.setdefault(key[1:], set()).add(adapter.content)
            for name, pin in self._pins.items():
                if self._loras[name][0] == key and pin != adapter:
                    self._pins[name] = None
        if ends.model:
            # The weights may have changed since.
            self._first = ends.named_by
        if not ends.weights:
            return
        if self._is_pure is None and not self._look:
            self._is_pure = True
        elif ends.weights != self._weights and self._is_pure:
            self._is_pure = False
            logger.warning(
                "kvd: the weights have changed, and vLLM keeps blocks of the old ones: no block is stored "
                "or found until its prefix cache is reset"
            )
        self._weights = ends.weights

    def _hashes(self, request: Request) -> list[bytes]:
        if request.lora_request is None:
            return request.block_hashes
        name = request.request_id
        if name not in self._views:
            self._views[name] = _WithoutAdapter(request)
        return self._views[name].hashes()
