"""Connectors for tests: layers placed at random, and streams with a fault. vLLM finds them by
kv_connector_module_path."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kvd_vllm.connector import KvdConnector
from kvd_vllm.layers import streaming
from kvd_vllm.layers.connector import LayersConnector
from kvd_vllm.layers.placement import Placement, Running
from kvd_vllm.layers.rows import Part
from kvd_vllm.layers.table import Copy

STEPS = 7  # how many steps a placement lasts; 197 steps have 29 of them


class Counting(LayersConnector):
    """vLLM asks the named class for its counters."""

    build_kv_connector_stats = KvdConnector.build_kv_connector_stats
    build_prom_metrics = KvdConnector.build_prom_metrics


class RandomLayers(Counting):
    """Each request has its own set of layers that stay, and another one after some steps. One to all of its layers
    stream."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        source, steps, seed = random.Random(17), [0], [0]

        def place(requests: Sequence[Running], layers: int, *_: Any) -> Placement:
            if steps[0] % STEPS == 0:
                seed[0] = source.randrange(1 << 30)
            steps[0] += 1
            of = random.Random(seed[0])
            most = of.randrange(layers)
            some = [frozenset(of.sample(range(layers), of.randint(0, most))) for _ in requests]
            return Placement(some, of.randint(1, 2))

        streaming.place = place  # this process has one engine


class NoLayerStays(Counting):
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        streaming.place = lambda requests, *_: Placement([frozenset()] * len(requests), 1)


class LeavesOneOut(LayersConnector):
    """One load of one block."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        assert self._streams is not None
        rows, left_out = self._streams._rows, [False]
        load = rows.load

        def short(copies: Sequence[Copy]) -> list[Part]:
            if copies and not left_out[0]:
                left_out[0] = True
                return load(copies[1:])
            return load(copies)

        rows.load = short  # type: ignore[method-assign]


class TellsNothing(LayersConnector):
    """This mutant does not tell vLLM of blocks that were lost."""

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()


class WritesEarly(LayersConnector):
    """A later layer's blocks come into staging pages before the attention that reads these."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        super().wait_for_layer_load(layer_name)
        streams = self._streams
        assert streams is not None
        each = streams._plan.layers[streams._layers[layer_name]]
        for copies in each.then.values():
            streams._rows.wait(streams._rows.load(copies))
