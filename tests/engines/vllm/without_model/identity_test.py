"""What names blocks, without an engine: the identity of weights and adapters is their content, and each
name that a worker is told is checked against it.
"""

from __future__ import annotations

import tempfile
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctest
import torch

from kvd_vllm.glances import Glances
from kvd_vllm.identity import (
    NoIdentity, adapter_of, config_of, parts_of, processor_of, weights_of, without_origin,
)  # fmt: skip
from kvd_vllm.layout import refusal
from kvd_vllm.loaded import Adapters, Loaded, Weights
from kvd_vllm.naming import Names
from kvd_vllm.transfers import Adapter, Copy, Ends, Kind, Transfers


def model(seed: int = 1, width: int = 256) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(width, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, width)]
    return torch.nn.Sequential(*layers)


class Packed(torch.nn.Module):
    """A linear layer whose matrix only its own code can read, as vLLM makes them on a CPU."""

    def __init__(self, matrix: torch.Tensor, fails: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(0))
        self.input_size_per_partition = matrix.shape[1]
        self.params_dtype = matrix.dtype
        self.quant_method = self
        self._hidden, self._fails = [matrix], fails

    def apply(self, layer: Any, vectors: Any = None, bias: Any = None) -> Any:  # type: ignore[override]
        if self._fails:
            raise RuntimeError("no such kernel")
        return vectors @ self._hidden[0].T


class WeightsByContent(unittest.TestCase):
    def test_equal_content_has_one_identity_and_no_other_has_it(self) -> None:
        first = weights_of({"model": model()})
        self.assertEqual(weights_of({"model": model()}), first)
        self.assertEqual(len({first, weights_of({"model": model(2)}), weights_of({"draft": model()})}), 3)

    def test_each_tensor_counts(self) -> None:
        first = weights_of({"model": model()})
        for at, _ in enumerate(model().parameters()):
            other = model()
            list(other.parameters())[at].data.add_(0.001)
            self.assertNotEqual(weights_of({"model": other}), first, f"tensor {at}")
        other = model()
        other.register_buffer("scale", torch.tensor(1.0))
        with_scale = weights_of({"model": other})
        other.get_buffer("scale").fill_(2.0)
        self.assertEqual(len({first, with_scale, weights_of({"model": other})}), 3)

    def test_a_single_number_counts(self) -> None:
        first = weights_of({"model": model()})
        other = model()
        other[0].weight.data[3, 5] += 0.001
        self.assertNotEqual(weights_of({"model": other}), first)

    def test_neither_strides_nor_an_adapters_wrapper_count(self) -> None:
        plain, other = model(), model()
        other[0].weight.data = other[0].weight.data.T.contiguous().T
        wrapper = torch.nn.Module()
        wrapper.base_layer = other[0]
        other[0] = wrapper
        self.assertEqual(weights_of({"model": plain}), weights_of({"model": other}))

    def test_types_of_every_width_are_read(self) -> None:
        for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool):
            holder = torch.nn.Module()
            holder.register_buffer("some", torch.ones(300, 40).to(kind))
            first = weights_of({"model": holder})
            holder.get_buffer("some").copy_(torch.zeros(300, 40))
            self.assertNotEqual(weights_of({"model": holder}), first, str(kind))

    def test_a_packed_matrix_is_read_by_its_layer(self) -> None:
        matrix = torch.randn(64, 32)
        first = weights_of({"model": Packed(matrix)})
        self.assertEqual(weights_of({"model": Packed(matrix.clone())}), first)
        self.assertNotEqual(weights_of({"model": Packed(matrix * 1.001)}), first)

    def test_what_cannot_be_read_has_none(self) -> None:
        empty = torch.nn.Module()
        empty.weight = torch.nn.Parameter(torch.empty(0))
        absent = torch.nn.Linear(4, 4, device="meta")
        for each in ({}, {"model": empty}, {"model": Packed(torch.ones(8, 8), fails=True)},
                     {"model": absent}, {"model": torch.nn.ReLU()}):  # fmt: skip
            with self.assertRaises(NoIdentity):
                weights_of(each)

    def test_where_a_model_came_from_is_no_part_of_its_config(self) -> None:
        some = {"hidden": 4, "_name_or_path": "/a", "text": {"rope": 1, "_name_or_path": "/b"}}
        self.assertEqual(without_origin(some), {"hidden": 4, "text": {"rope": 1}})


class Configs(unittest.TestCase):
    """What of vLLM's configuration KV depends on."""

    def config(self, **cache: Any) -> Any:
        some = types.SimpleNamespace
        return some(
            model_config=some(hf_config=some(to_dict=dict), dtype="f", quantization="", multimodal_config=None),
            cache_config=some(cache_dtype="f", prefix_caching_hash_algo="sha256", block_size=32,
                              enable_prefix_caching=True, **cache),
            parallel_config=some(rank=0, world_size=1, tensor_parallel_size=1, data_parallel_size=1),
        )  # fmt: skip

    def test_factors_of_long_texts_make_other_blocks(self) -> None:
        """Where --max-model-len is long, vLLM takes them for short texts as well."""
        cache = types.SimpleNamespace(kv_cache_groups=[], kv_cache_layout="")
        names = []
        for long in (False, True):
            living: Any = model()
            living[0].use_long_rope = long
            names.append(config_of(self.config(), cache, {"model": living}))
        self.assertNotEqual(*names)

    def test_what_makes_tensors_of_images_counts(self) -> None:
        with tempfile.TemporaryDirectory(prefix="kvd-processor-") as folder:
            chosen = types.SimpleNamespace(mm_processor_kwargs=None, media_io_kwargs=None)
            here: Any = types.SimpleNamespace(model=folder, revision=None, multimodal_config=chosen)
            found = [processor_of(here)]
            (Path(folder) / "preprocessor_config.json").write_text('{"size": 224}')
            found += [processor_of(here)]
            chosen.mm_processor_kwargs = {"size": 448}
            found += [processor_of(here)]
            self.assertEqual(len({str(each) for each in found}), 3)
            self.assertEqual(processor_of(here), found[-1])

    def test_blocks_of_several_hashes_are_refused(self) -> None:
        group = types.SimpleNamespace(kv_cache_spec=None)
        cache: Any = types.SimpleNamespace(kv_cache_groups=[group, group])
        self.assertIn("prefix-match-unit", refusal(self.config(prefix_match_unit=16), cache))
        self.assertNotIn("prefix-match-unit", refusal(self.config(prefix_match_unit=32), cache))


class Holder(types.SimpleNamespace):
    """A class that allows weak references, like vLLM's adapters."""


class GlancesAtWeights(unittest.TestCase):
    def changed(self, change: Callable[[torch.nn.Module], object]) -> list[bool]:
        living = torch.nn.Sequential(*[model(seed) for seed in range(4)])
        glances = Glances(lambda: parts_of({"model": living}))
        glances.note()
        self.assertFalse(any(glances.is_changed() for _ in range(30)))
        change(living)
        return [glances.is_changed() for _ in range(3)]

    def test_the_first_sees_an_update_of_all_and_some_that_of_one(self) -> None:
        def all_of(living: torch.nn.Module) -> None:
            for each in living.parameters():
                each.data.add_(0.1)

        def another(living: Any) -> None:
            living[1][0].weight = torch.nn.Parameter(torch.ones(512, 256))

        self.assertTrue(self.changed(all_of)[0])
        self.assertTrue(any(self.changed(another)))

    def test_a_model_without_tensors_never_changes(self) -> None:
        glances = Glances(list)
        glances.note()
        self.assertFalse(glances.is_changed())


def adapter(factor: float = 1.0) -> Any:
    layer = types.SimpleNamespace(
        module_name="q", rank=1, scaling=1, lora_a=torch.ones(1, 4) * factor,
        lora_b=[torch.ones(4, 1), None],
    )  # fmt: skip
    return Holder(loras={"q": layer}, modules_to_save={})


class Lora(types.SimpleNamespace):
    """The fields of a LoRARequest that are looked at."""

    def __init__(self, number: int = 1, name: str = "some", path: str = "/some") -> None:
        super().__init__(lora_int_id=number, lora_name=name, lora_path=path)


class AdaptersByContent(unittest.TestCase):
    def test_all_of_it_counts_and_nothing_else(self) -> None:
        self.assertEqual(adapter_of(adapter()), adapter_of(adapter()))
        scaled, longer = adapter(), adapter()
        scaled.loras["q"].scaling = 2
        longer.loras["q"].lora_b[1] = torch.ones(4, 1)
        found = {adapter_of(each) for each in (adapter(), adapter(1.001), scaled, longer)}
        self.assertEqual(len(found), 4)
        strange = adapter()
        strange.loras["q"].other = object()
        with self.assertRaises(NoIdentity):
            adapter_of(strange)

    def test_a_load_of_other_content_is_another(self) -> None:
        loaded = {1: adapter()}
        adapters = Adapters(lambda lora, _: loaded.get(lora.lora_int_id), lambda: loaded)
        first = adapters.look(Lora())
        loaded[1] = adapter()  # loaded again, with the same content
        self.assertEqual(adapters.look(Lora()), first)
        loaded[1] = adapter(2.0)
        second = adapters.look(Lora())
        loaded[1] = adapter()  # and back again: what was computed meanwhile belongs to neither
        third = adapters.look(Lora())
        assert first and second and third
        self.assertEqual(first.content, third.content)
        self.assertEqual(len({first.load, second.load, third.load}), 3)
        self.assertIsNone(adapters.look(Lora(2)))

    def test_one_that_cannot_be_told_is_like_no_other(self) -> None:
        strange = adapter()
        strange.loras["q"].other = object()
        found = [Adapters(lambda *_: strange, lambda: []).look(Lora()) for _ in range(2)]
        assert found[0] and found[1]
        self.assertNotEqual(found[0].content, found[1].content)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class LivingEngine(unittest.TestCase):
    """Weights that are changed under a worker."""

    count = 100  # tensors

    def setUp(self) -> None:
        self.content, self.glances, self.gpu_is_busy = "A", 0, False
        self.clock = Clock()
        self.weights = Weights("A", lambda: self.content, self, self.clock)  # type: ignore[arg-type]
        self.loaded = {1: adapter()}
        self.on_disk: dict[int, Any] = {}
        self.worker = Loaded("model", self.weights, Adapters(self.find, lambda: self.loaded))
        first = self.step(0.0)
        assert first
        self.assertEqual((first.model, first.named_by, self.step(0.0)), ("model", "A", None))

    def find(self, lora: Lora, load: bool) -> Any:
        if load and lora.lora_int_id in self.on_disk:
            self.loaded[lora.lora_int_id] = self.on_disk[lora.lora_int_id]
        return self.loaded.get(lora.lora_int_id)

    def note(self) -> None:
        self.noted = self.content

    def begin(self) -> Any:
        """On a GPU a look comes when the work given before is done."""
        self.glances += 1
        self.clock.now += 0.001
        seen = self.content
        return types.SimpleNamespace(
            has_come=lambda: not self.gpu_is_busy, is_changed=lambda: seen != self.noted
        )

    def is_right(self, copy: Copy) -> bool:
        return self.worker.judge()(copy)

    def step(self, pause_s: float, weights: str = "A", look: bool = False) -> Ends | None:
        self.clock.now += pause_s
        self.worker.step_begins(weights, look, [])
        self.worker.step_ends()
        return self.worker.add_to(None)

    def test_steps_in_a_row_look_seldom_and_a_pause_is_followed_by_a_look(self) -> None:
        for _ in range(200):
            self.step(0.0015)
        self.assertLess(self.glances, 10)
        before = self.glances
        self.step(0.01)
        self.assertEqual(self.glances, before + 1)

    def test_a_pause_in_which_all_weights_cannot_be_written_is_none(self) -> None:
        self.count = 400
        self.step(0.0)
        before = self.glances
        for _ in range(10):
            self.step(0.005)
        self.assertEqual(self.glances, before)
        self.step(0.01)
        self.assertEqual(self.glances, before + 1)

    def test_the_name_is_told_with_the_weights_that_it_stands_for(self) -> None:
        worker = Loaded("model", self.weights, Adapters(self.find, lambda: self.loaded))
        self.content = "B"
        self.clock.now += 10.0
        worker.step_begins("", True, [])
        worker.step_ends()
        first = worker.add_to(None)
        assert first
        self.assertEqual((first.model, first.named_by, first.weights), ("model", "A", "B"))

    def test_changed_weights_are_told_and_copies_under_their_names_refused(self) -> None:
        store, park = Copy(1, Kind.STORE, "r", [], [], shared=True), Copy(2, Kind.PARK, "r", [], [])
        self.assertIsNone(self.step(0.01))
        self.assertTrue(self.is_right(store))
        self.content = "B"
        ends = self.step(0.01)
        assert ends
        self.assertEqual(ends.weights, "B")
        self.assertFalse(self.is_right(store))
        self.assertTrue(self.is_right(park))
        self.assertIsNone(self.step(0.01, "B"))
        self.assertTrue(self.is_right(store))

    def test_a_busy_gpu_holds_no_step_up_and_its_copies_are_judged_once_it_is_done(self) -> None:
        self.gpu_is_busy = True
        store = Copy(1, Kind.STORE, "r", [], [], shared=True)
        self.content = "B"
        self.assertIsNone(self.step(0.01))
        of_that_step = self.worker.judge()
        self.content = "A"
        self.assertIsNone(self.step(0.01))
        of_the_next = self.worker.judge()
        self.gpu_is_busy = False
        self.assertFalse(of_that_step(store), "it was B for a step")
        self.assertFalse(of_the_next(store), "as far as one knew")
        self.assertIsNone(self.step(0.01))
        self.assertTrue(self.is_right(store))

    def test_a_look_that_is_asked_for_is_answered(self) -> None:
        ends = self.step(0.0, look=True)
        assert ends
        self.assertEqual(ends.weights, "A")

    def test_a_copy_of_an_adapter_is_right_while_that_is_loaded(self) -> None:
        self.worker.step_begins("A", False, [Lora()])  # type: ignore[list-item]
        ends = self.worker.add_to(None)
        assert ends
        (known,) = ends.adapters.values()
        copy = Copy(1, Kind.LOAD, "r", [], [], shared=True, lora=Lora(), adapter=known)  # type: ignore[arg-type]
        self.assertTrue(self.is_right(copy))
        self.loaded[1] = adapter(2.0)
        self.assertFalse(self.is_right(copy))
        ends = self.worker.add_to(None)
        assert ends
        self.assertNotEqual(list(ends.adapters.values()), [known])
        self.loaded.clear()
        self.on_disk[1] = adapter()
        self.assertFalse(self.is_right(copy), "it is not loaded for that")
        self.assertEqual(self.loaded, {})

    def test_one_that_was_another_for_a_step_is_not_what_it_was(self) -> None:
        """What that step has computed belongs to neither content, although nobody copied anything in it."""
        self.worker.step_begins("A", False, [Lora()])  # type: ignore[list-item]
        ends = self.worker.add_to(None)
        assert ends
        (known,) = ends.adapters.values()
        copy = Copy(1, Kind.STORE, "r", [], [], shared=True, lora=Lora(), adapter=known)  # type: ignore[arg-type]
        self.loaded[1] = adapter(2.0)
        self.step(0.0)
        self.loaded[1] = adapter()
        ends = self.step(0.0)
        assert ends
        (again,) = ends.adapters.values()
        self.assertEqual((again.content, again.load == known.load), (known.content, False))
        self.assertFalse(self.is_right(copy))

    def test_adapters_of_many_who_wait_are_loaded_one_a_step(self) -> None:
        self.on_disk = {at: adapter(float(at)) for at in range(2, 6)}
        self.worker.step_begins("A", False, [Lora(at) for at in range(1, 6)])  # type: ignore[misc]
        ends = self.worker.add_to(None)
        assert ends
        self.assertEqual([key[0] for key in ends.adapters], [1, 2], "one was there, one is loaded")
        for at in range(3, 6):
            ends = self.step(0.0)
            assert ends
            self.assertEqual([key[0] for key in ends.adapters], [at])
        self.assertIsNone(self.step(0.0))


class Request(types.SimpleNamespace):
    """Imitates vLLM's class, with as much of its hasher as matters here."""

    def __init__(self, name: str, lora: Any = None, salt: str = "") -> None:
        super().__init__(request_id=name, lora_request=lora, resumable=False, salt=salt, mm_features=[],
                         block_hashes=[], _block_hasher=hasher)  # fmt: skip
        self.block_hashes = hasher(self)


def image(name: str, pixel: float = 0.0, offset: int = 0) -> Any:
    some = types.SimpleNamespace
    data = {"pixel_values": some(data=torch.full((3, 4), pixel)), "grid": some(data=[1, 2])}
    return some(identifier=name, data=data, mm_position=some(offset=offset))


def hasher(request: Any) -> list[bytes]:
    lora = request.lora_request
    extra = f"{lora.lora_name} {lora.lora_path}" if lora else ""
    done = len(request.block_hashes)
    return [f"{request.salt} {extra} block {at}".ljust(40).encode() for at in range(done, 3)]


PLACES = [(0, 0), (0, 1)]


class NamesOfBlocks(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def names(self, **contents: bytes) -> Names:
        """The names of an engine whose worker has adapters of these contents, by name."""
        names = Names(1, 16, self.clock, patience_s=10.0)
        names.ask(Transfers(), True)
        names.hear(Ends(model="model", named_by="A", weights="A"))
        for at, (name, content) in enumerate(contents.items()):
            names.hear(Ends(adapters={(at + 1, name, "/" + name): Adapter(at + 1, content)}))
        return names

    def digests(self, names: Names, request: Any, local: int = 0) -> list[bytes] | bool | None:
        names.add(request)
        share = names.may_share(request, local)
        return names.digests(request, PLACES) if share else share

    def test_without_adapter_they_are_vllms_hashes(self) -> None:
        request, other = Request("r"), Request("s", salt="x")
        self.assertEqual(self.digests(self.names(), request), self.digests(self.names(), Request("t")))
        self.assertNotEqual(self.digests(self.names(), request), self.digests(self.names(), other))

    def test_of_weights_that_changed_before_the_first_step_are_others(self) -> None:
        """The cache is named by what was loaded at first."""
        names = Names(1, 16, self.clock, patience_s=10.0)
        names.ask(Transfers(), True)
        names.hear(Ends(model="model", named_by="A", weights="B"))
        self.assertNotEqual(self.digests(names, Request("r")), self.digests(self.names(), Request("r")))

    def test_images_that_are_not_told_by_content_are_not_shared(self) -> None:
        """vLLM counts them where nothing caches them, and accepts whatever name a client gives."""
        for name, may in (("ab" * 32, True), ("some:" + "ab" * 64, True), ("ab" * 31, False),
                          ("renderer0-mm-1-image-0", False), ("cat", False)):  # fmt: skip
            request = Request("r")
            request.mm_features = [image(name)]
            self.assertEqual(self.names().may_share(request, 0), may, name)

    def test_a_clients_name_that_looks_like_a_hash_is_none(self) -> None:
        """Even the input of a hash is not always the content. So the model's own input counts, from the block on in
        which that begins."""
        names, found = [self.names() for _ in range(2)], []
        for engine, pixel in zip(names, (1.0, 2.0), strict=True):
            request = Request("r")
            request.mm_features = [image("ab" * 32, pixel, offset=16)]
            found.append(self.digests(engine, request))
        self.assertEqual(found[0][0], found[1][0])
        self.assertNotEqual(found[0][1], found[1][1])
        other = Request("s")
        other.mm_features = [image("ab" * 32, 3.0)]
        self.assertFalse(names[0].may_share(other, 0), "vLLM may take the first one for it")
        self.assertEqual(self.digests(self.names(), request), found[1])

    def test_images_whose_tensors_are_elsewhere_are_not_shared(self) -> None:
        for data in (None, {"address": types.SimpleNamespace(data=1)}, {"a": object()}):
            request = Request("r")
            request.mm_features = [image("ab" * 32)]
            request.mm_features[0].data = data
            self.assertFalse(self.names().may_share(request, 0))

    def test_two_adapters_of_one_name_are_both_remembered(self) -> None:
        names = self.names(some=b"1" * 32)
        names.hear(Ends(adapters={(2, "some", "/some"): Adapter(2, b"2" * 32)}))
        names.reset()
        names.ask(Transfers(), True)
        names.hear(Ends(weights="A"))
        self.assertFalse(self.digests(names, Request("r", Lora()), 32), "it may be the other's")

    def test_an_adapter_counts_by_content_whatever_it_is_called(self) -> None:
        lora = lambda name: Request("r", Lora(1, name, "/" + name))  # noqa: E731
        first = self.digests(self.names(some=b"1" * 32), lora("some"))
        self.assertEqual(self.digests(self.names(other=b"1" * 32), lora("other")), first)
        self.assertNotEqual(self.digests(self.names(some=b"2" * 32), lora("some")), first)
        self.assertNotEqual(self.digests(self.names(), Request("r")), first)

    def test_weights_are_looked_at_only_where_that_is_of_use(self) -> None:
        """They may be missing in a step that computes nothing: an engine sleeps without them."""
        names, transfers = self.names(), Transfers()
        names.reset()
        names.ask(transfers, False)
        self.assertFalse(transfers.look)
        names.hear(Ends(weights="A"))
        self.assertIsNone(names.may_share(Request("r"), 0), "that was no answer")
        names.ask(transfers, True)
        self.assertTrue(transfers.look)

    def test_a_request_waits_until_its_adapter_is_known_but_not_for_ever(self) -> None:
        names, request = self.names(), Request("r", Lora())
        self.assertIsNone(self.digests(names, request))
        transfers = Transfers()
        names.ask(transfers, True)
        self.assertEqual(transfers.adapters, [request.lora_request])
        self.clock.now += 11
        self.assertFalse(names.may_share(request, 0))
        names.hear(Ends(adapters={(1, "some", "/some"): Adapter(1, b"1" * 32)}))
        self.assertTrue(names.may_share(request, 0))

    def test_what_was_computed_with_two_contents_is_never_named(self) -> None:
        names = self.names(some=b"1" * 32)
        before, after, local = (Request(name, Lora()) for name in ("r", "s", "t"))
        self.assertTrue(self.digests(names, before))
        names.hear(Ends(adapters={(1, "some", "/some"): Adapter(2, b"2" * 32)}))
        self.assertFalse(names.may_share(before, 0))
        self.assertTrue(self.digests(names, after))
        self.assertFalse(self.digests(names, local, 32), "vLLM's own blocks may be of the first")
        names.reset()
        names.ask(Transfers(), True)
        names.hear(Ends(weights="A"))
        self.assertTrue(self.digests(names, Request("u", Lora()), 32))

    def test_after_other_weights_nothing_is_shared_until_a_reset_and_then_under_other_names(self) -> None:
        names, request = self.names(), Request("r")
        first = self.digests(names, request)
        with self.assertLogs("vllm.kvd_vllm", "WARNING"):
            names.hear(Ends(weights="B"))
        self.assertIs(names.may_share(request, 0), False)
        names.reset()
        self.assertIsNone(names.may_share(request, 0))
        transfers = Transfers()
        names.ask(transfers, True)
        self.assertTrue(transfers.look)
        names.hear(Ends(weights="B"))
        self.assertTrue(names.may_share(request, 0))
        self.assertNotEqual(self.digests(names, request), first)
        names.reset()
        names.ask(transfers, True)
        names.hear(Ends(weights="A"))
        self.assertEqual(self.digests(names, request), first)

    def test_what_is_cleared_is_not_found_again(self) -> None:
        names, request = self.names(), Request("r")
        first = self.digests(names, request)
        names.clear()
        self.assertNotEqual(self.digests(names, request), first)


if __name__ == "__main__":
    ctest.main()
