"""python -m kvd_vllm doctor: right about a vLLM that fits, and about one that does not."""

from __future__ import annotations

import ast
import json
import os
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import ctest
from kvd_process import KvdProcess
from vllm_process import ROOT, Bench

from kvd_vllm import __main__ as doctor
from kvd_vllm.checks import NAMES

DOCTOR = ["-m", "kvd_vllm", "doctor", "--json"]
# The same, of a vLLM in which something is otherwise.
CHANGED = """
import sys
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.worker import utils
def allocate_kv_cache(kv_cache_config, device, layout): pass
utils.allocate_kv_cache = allocate_kv_cache
del base.KVConnectorBase_V1.get_mem_pool_context
from kvd_vllm import __main__
sys.exit(__main__.main(["doctor", "--json"]))
"""

# And one that lacks a name which is imported: the last one that had none.
OLDER = """
import sys
from vllm.v1.metrics import cache_hit_source
del cache_hit_source.CacheHitSource
from kvd_vllm import __main__
sys.exit(__main__.main(["doctor", "--json", "--wait", "0"]))
"""
PACKAGE = ROOT / "client_lib/python/kvd_vllm"
# What holds an object of vLLM's, where the package takes something of it.
VLLMS = {
    "here", "scheduler", "request", "oldest", "self._pool", "pool", "here.kv_cache_manager",
    "here.kv_cache_manager.block_pool", "output", "output.scheduled_cached_reqs", "new", "transfer",
    "connector_output", "config.cache_config", "config.scheduler_config", "group", "cache", "spec",
    "parallel", "parameters",
}  # fmt: skip


def used(source: str) -> Iterator[tuple[str, str]]:
    """What is taken of vLLM when it runs: module and name of what is imported, "" and the name of what
    its objects have."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for each in ast.walk(node):
            if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("vllm"):
                yield from ((str(each.module), name.name) for name in each.names)
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) in VLLMS \
                    and not each.attr.startswith(("kvd_", "load", "store")):  # fmt: skip
                yield "", each.attr


class Doctor(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.bench = Bench(engines=False)
        cls.addClassCleanup(cls.bench.close)

    def faults(self, printed: str) -> dict[str, str]:
        findings: list[dict[str, Any]] = json.loads(printed)["findings"]
        return {found["what"].split(".")[-1]: found["fault"] for found in findings if found["fault"]}

    def test_finds_nothing_wrong_with_the_pinned_vllm(self) -> None:
        kvd = self.enterContext(KvdProcess())
        run = self.bench.run(DOCTOR, KVD_ENDPOINT=kvd.endpoint)
        self.assertEqual(self.faults(run.stdout), {}, run.stderr)
        self.assertEqual(run.returncode, 0)
        none = self.bench.run([*DOCTOR, "--wait", "0"], KVD_ENDPOINT="/nonexistent")
        self.assertEqual(none.returncode, 3)

    def test_finds_what_another_vllm_has_not(self) -> None:
        run = self.bench.run(["-c", CHANGED], KVD_ENDPOINT="/nonexistent")
        self.assertEqual(run.returncode, 1, run.stderr)
        faults = self.faults(run.stdout)
        self.assertEqual(faults["get_mem_pool_context"], "there is no get_mem_pool_context")
        self.assertIn("not (kv_cache_config, device, layout, kernel", faults["allocate_kv_cache"])

    def test_names_what_an_older_vllm_lacks(self) -> None:
        run = self.bench.run(["-c", OLDER], KVD_ENDPOINT="/nonexistent")
        self.assertEqual(run.returncode, 1, run.stderr)
        faults = self.faults(run.stdout)
        self.assertNotIn("vllm", faults, "that can be imported")
        self.assertEqual(faults["HOST"], "there is no CacheHitSource")
        self.assertIn("cannot import name 'CacheHitSource'", faults[next(f for f in faults if "all that" in f)])

    def test_looks_at_all_that_is_used(self) -> None:
        modules = {(name.module, name.path.split(".")[0]) for name in NAMES}
        parts = {name.text.removeprefix("self.") or name.path.split(".")[-1] for name in NAMES}
        parts |= {name.path.split(".")[-1] for name in NAMES}
        missing = []
        for path in sorted(PACKAGE.glob("*.py")):
            for module, name in used(path.read_text()):
                known = (module, name) in modules if module else name in parts
                missing += [] if known else [f"{path.name}: {module} {name}"]
        self.assertEqual(missing, [])

    def test_waits_for_a_kvd_that_has_just_been_started(self) -> None:
        kvd = KvdProcess()
        kvd.kill()
        self.addCleanup(kvd.__exit__)
        with mock.patch.dict(os.environ, KVD_ENDPOINT=kvd.endpoint), ThreadPoolExecutor() as pool, \
                mock.patch.object(doctor, "look", list):  # fmt: skip
            found = pool.submit(doctor.examine, 60.0)
            kvd.start()
            self.assertEqual(found.result()[0]["findings"][-1]["fault"], "")


if __name__ == "__main__":
    ctest.main()
