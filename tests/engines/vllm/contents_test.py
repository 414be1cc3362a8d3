"""What outlives a vLLM is named by its content, on real vLLM processes: other weights or another adapter under
the old name find nothing and answer as stock; equal bytes under another name find all of it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import unittest
from pathlib import Path
from typing import Any

import ctest
import tiny_model
from hub import Hub
from kvd_process import KvdProcess
from vllm_process import Bench, Engine, on_kvd

FULL, ANSWER = 128, 24  # tokens in full blocks, of each prompt
PATIENT = {"step_budget_s": 2.0}  # the machine may be busy
WITH_LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
Step = dict[str, Any]
Answers = list[dict[str, Any]]


def ask(seed: int = 7, **given: Any) -> Step:
    source = random.Random(seed)
    prompt = [source.randrange(3, 2048) for _ in range(FULL + 5)]
    return {"prompts": [prompt], "answer": ANSWER, **given}


def setUpModule() -> None:
    global bench, hub, other, adapters, stock
    hub = Hub("some/model")
    unittest.enterModuleContext(hub)
    bench = Bench(environment={"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"})
    unittest.addModuleCleanup(bench.close)
    other = bench.folder / "other"
    tiny_model.write(other, seed=2)
    adapters = [bench.folder / f"adapter{seed}" for seed in (1, 2)]
    for seed, folder in enumerate(adapters):
        tiny_model.write_adapter(folder, seed)
    first, second = ([str(path), str(path), at + 1] for at, path in enumerate(adapters))
    steps = [ask(), ask(lora=first), ask(lora=second), {**ask(), "scale": 1.5}]
    plain, one, two, scaled = play(bench.model, steps, WITH_LORA)
    (changed,) = play(other, [ask()])
    stock = {"plain": plain, "changed": changed, "one": one, "two": two, "scaled": scaled}
    tokens = [str(each["tokens"]) for each in stock.values()]
    assert len(set(tokens)) == len(tokens), "answers must tell the contents apart"


def play(model: Path | str, steps: list[Step], engine: dict[str, Any] | None = None,
         kvd: KvdProcess | None = None) -> Answers:  # fmt: skip
    """Runs one process from its start to its end."""
    options = {**(engine or {}), **(on_kvd(PATIENT) if kvd is not None else {})}
    out, log = bench.folder / "out.json", bench.folder / "out.log"
    log.write_text("")
    arguments = [str(model), str(out), json.dumps({"engine": options, "steps": steps})]
    process = bench.start("contents_engine.py", arguments, log, kvd.endpoint if kvd else None)
    with Engine(process, out, log) as running:
        return running.answers()


def overwrite(folder: Path, source: Path) -> None:
    """Files have the same size and time, as after `cp -p` or in container images."""
    for file in source.iterdir():
        target = folder / file.name
        before = target.stat()
        assert file.stat().st_size == before.st_size
        shutil.copyfile(file, target)
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))


class Contents(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=32))

    def copy_of(self, folder: Path, name: str) -> Path:
        target = bench.folder / name
        self.addCleanup(shutil.rmtree, target)
        return Path(shutil.copytree(folder, target))

    def play(self, model: Path | str, *steps: Step, **engine: Any) -> Answers:
        return play(model, list(steps), engine, self.kvd)

    def expect(self, found: Answers, *expected: tuple[str, int]) -> None:
        """The answers of stock, and the tokens that came from kvd."""
        for each, (name, _) in zip(found, expected, strict=True):
            self.assertEqual(each["tokens"], stock[name]["tokens"], name)
        self.assertEqual([each["found"] for each in found], [count for _, count in expected])

    def test_weights_in_another_folder_are_the_same_and_others_in_the_old_one_are_not(self) -> None:
        here, there = self.copy_of(bench.model, "here"), self.copy_of(bench.model, "there")
        self.expect(self.play(here, ask()), ("plain", 0))
        overwrite(here, other)
        self.expect(self.play(here, ask()), ("changed", 0))
        self.expect(self.play(there, ask()), ("plain", FULL))

    def test_a_name_of_a_hub_is_what_it_stands_for(self) -> None:
        hub.main = bench.model
        self.expect(self.play(hub.name, ask()), ("plain", 0))
        hub.main = other
        self.expect(self.play(hub.name, ask()), ("changed", 0))
        self.expect(self.play(bench.model, ask()), ("plain", FULL))

    def test_an_adapter_by_another_name_is_the_same_and_another_by_the_old_one_is_not(self) -> None:
        here, there = self.copy_of(adapters[0], "here"), self.copy_of(adapters[0], "there")
        old, new = ["old", str(here), 1], ["new", str(there), 7]
        self.expect(self.play(bench.model, ask(lora=old), **WITH_LORA), ("one", 0))
        overwrite(here, adapters[1])
        self.expect(self.play(bench.model, ask(lora=old), **WITH_LORA), ("two", 0))
        found = self.play(bench.model, ask(lora=new), ask(), **WITH_LORA)
        self.expect(found, ("one", FULL), ("plain", 0))

    def test_an_adapter_that_is_loaded_again_is_what_was_loaded(self) -> None:
        here = self.copy_of(adapters[0], "here")
        files = [[str(each), str(here)] for each in adapters[1].iterdir()]
        old, new = ["old", str(here), 1], ["new", str(adapters[1]), 2]
        found = self.play(
            bench.model, ask(lora=old), {"copy": files, **ask(lora=old)}, {"reload": old, **ask(lora=old)},
            ask(lora=new), **WITH_LORA,
        )  # fmt: skip
        # Files that nobody has loaded change nothing.
        self.expect(found[:2], ("one", 0), ("one", FULL))
        # vLLM counts as found what was then not loaded.
        self.assertEqual([each["tokens"] for each in found[2:]], [stock["two"]["tokens"]] * 2)

    def test_weights_that_are_changed_in_a_living_engine_are_others(self) -> None:
        found = self.play(
            bench.model, ask(), {"scale": 1.5, "reset": True, **ask()}, ask(), ask(8),
        )  # fmt: skip
        self.expect(found[:3], ("plain", 0), ("scaled", 0), ("scaled", FULL))
        # What it stores since is nothing to an engine with the weights that it began with.
        plain = self.play(bench.model, ask(8), ask())
        self.assertEqual([each["found"] for each in plain], [0, FULL])
        self.assertEqual(plain[1]["tokens"], stock["plain"]["tokens"])


    def test_weights_that_are_changed_and_nobody_says_so_find_nothing_either(self) -> None:
        found = self.play(bench.model, ask(), {"scale": 1.5, **ask()}, ask(8))
        self.assertEqual(found[1]["tokens"], stock["scaled"]["tokens"])
        plain = self.play(bench.model, ask(), ask(8))
        self.assertEqual([each["found"] for each in plain], [FULL, 0])
        self.assertEqual(plain[0]["tokens"], stock["plain"]["tokens"])


if __name__ == "__main__":
    ctest.main()
