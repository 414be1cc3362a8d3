"""Which layers of which request stay in HBM: as kvd's planner says, or else the same ones of all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Running(NamedTuple):
    """A request in a step. Its tokens from `before` up to `after` are computed."""

    names: tuple[int, ...]  # vLLM's blocks of it, in the order of its tokens
    before: int
    after: int
    request: str = ""


class Placement(NamedTuple):
    resident: list[frozenset[int]]  # for each request its layers that stay in HBM
    windows: int  # layers of a block after each other, so many of which may be staged at a time


class NoRoom(Exception):
    """Says what does not fit."""


MOST_WINDOWS = 2  # one is read while the next is filled


def interleaved(layers: int) -> list[int]:
    """The layers in an order of which every beginning lies evenly among all: then there is time to fetch
    the streamed ones, and one layer more or less leaves the others where they are."""
    bits = max(1, (layers - 1).bit_length())
    return sorted(range(layers), key=lambda layer: f"{layer:0{bits}b}"[::-1])


def partial_names(requests: Sequence[Running], tokens: int) -> set[int]:
    """Blocks that are not full before the step, or not after it: these stay where they are written."""
    found: set[int] = set()
    for names, before, after, _ in requests:
        found.update(names[at // tokens] for at in (before, after) if at % tokens)
    return found


def pages_needed(names: int, partial: int, layers: int, resident: int, windows: int) -> int:
    """The most pages that a step takes in which `names` blocks are read or written, `partial` of them
    partial."""
    streamed = layers - resident
    return resident * names + streamed * partial + min(windows, streamed) * (names - partial)


def least_pages(names: int, requests: int, layers: int) -> int:
    """With so many pages every step has room, if all names are in use by so many requests. A request that
    goes on with a prompt that was cut within a block has two partial blocks. The token budget cuts one
    prompt at a time, but those that are computed again beside it may have been cut as well."""
    return pages_needed(names, min(names, 2 * requests), layers, 0, 1)


def streamed(layers: int, distance: int) -> frozenset[int]:
    """The layers that a distance of kvd's planner streams: 0 none, k each k-th."""
    return frozenset(range(distance - 1, layers, distance)) if distance else frozenset()


def stays(requests: Sequence[Running], resident: Sequence[frozenset[int]]) -> dict[int, frozenset[int]]:
    """By block, its layers that stay: all that one of its requests keeps."""
    found: dict[int, frozenset[int]] = {}
    for each, layers in zip(requests, resident, strict=True):
        for name in each.names:
            found[name] = found.get(name, frozenset()) | layers
    return found


def place(
    requests: Sequence[Running], layers: int, pages: int, tokens: int, planned: Mapping[str, int] = {},
) -> Placement:  # fmt: skip
    """`planned`: by request, the distance that kvd's planner gave it. Others have all layers in HBM where
    there is room for them, or none. Without a plan that fits, the same layers of all requests stay: as many
    as leave room for the others to be staged. Raises NoRoom."""
    some = partial_names(requests, tokens)
    every = frozenset(range(layers))
    plans = {request: every - streamed(layers, distance) for request, distance in planned.items()}
    for others in (every, frozenset[int]()) if plans else ():
        resident = [plans.get(each.request, others) for each in requests]
        kept = [layers if name in some else len(each) for name, each in stays(requests, resident).items()]
        for windows in range(MOST_WINDOWS, 0, -1):
            if sum(each + min(windows, layers - each) for each in kept) <= pages:
                return Placement(resident, windows)
    names = {name for each in requests for name in each.names}
    partial = len(some)
    for windows in range(MOST_WINDOWS, 0, -1):
        for count in range(layers, -1, -1):
            if pages_needed(len(names), partial, layers, count, windows) <= pages:
                return Placement([frozenset(interleaved(layers)[:count])] * len(requests), windows)
    raise NoRoom(f"{len(names)} blocks of {layers} layers do not fit into {pages} pages")
