"""python -m kvd_vllm doctor: right about a vLLM that fits, and about one that does not. And flags: what it
prints is what vLLM takes."""

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
from vllm_process import ROOT, Bench, on_kvd

import kvd_client
from kvd_vllm import __main__ as doctor
from kvd_vllm import flags
from kvd_vllm.checks import NAMES, OPTIONAL

DOCTOR = ["-m", "kvd_vllm", "doctor", "--json"]
# What it says where no kvd answers: as vLLM is, where a source is otherwise, which nobody has tried, and
# where something is missing.
OTHERWISE = """
import contextlib, io, json
from unittest import mock
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.engine import core
from vllm.v1.worker import utils
from kvd_vllm import __main__, checks

def print_findings():
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = __main__.main(["doctor", "--json", "--wait", "0"])
    print(json.dumps({"status": status, **json.loads(said.getvalue())}))

def source_of(found, _source_of=checks._source_of):
    return "" if found is core.EngineCore else _source_of(found)

def allocate_kv_cache(kv_cache_config, device, layout): pass

print_findings()
with mock.patch.object(checks, "_source_of", source_of):
    print_findings()
with mock.patch.object(utils, "allocate_kv_cache", allocate_kv_cache):
    del base.KVConnectorBase_V1.get_mem_pool_context
    print_findings()
"""
# What the doctor runs, in vLLMs whose names are all there and that do something else.
TRIED = """
import json
import torch
from unittest import mock
from kvd_vllm.doctor import rig, trial
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

def elsewhere(*given, _allocate=rig.allocate_kv_cache):
    with torch._C.DisableTorchFunction():
        return _allocate(*given)

def nothing(*given): pass

for owner, name, other in (
    (trial, "_STEPS", 250), (rig, "allocate_kv_cache", elsewhere), (Scheduler, "_handle_failed_recving", nothing),
    (FCFSRequestQueue, "prepend_request", nothing),
):
    with mock.patch.object(owner, name, other):
        found = list(trial.run(trial.Place(None, "cpu", 2 << 20)))
    print(json.dumps({"without": name, "findings": [each._asdict() for each in found]}))
"""
# vLLM's own checks of what `flags` prints: on this machine, then as if it had a GPU beside kvd's pool.
TAKEN = """
import contextlib, io, json, sys
from types import SimpleNamespace
from unittest import mock
import kvd_client
from kvd_vllm import __main__, connector, flags
from vllm.distributed.kv_transfer.kv_connector.utils import get_kv_connector_cache_layout
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.worker.utils import request_memory

def config_of(found):
    words = [word for flag in found for word in (flag["name"], flag["value"])]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(["--model", sys.argv[1], "--skip-tokenizer-init", *words])
    return EngineArgs.from_cli_args(given).create_engine_config()

said = io.StringIO()
with contextlib.redirect_stdout(said):
    status = __main__.main(["flags", "--model", sys.argv[1], "--json"])
config = config_of(json.loads(said.getvalue())["flags"])
kind = config.scheduler_config.get_scheduler_cls()
here = {
    "status": status, "bytes": config.cache_config.kv_cache_memory_bytes, "scheduler": kind.__name__,
    "fits": issubclass(kind, AsyncScheduler) == config.scheduler_config.async_scheduling,
    "layout": get_kv_connector_cache_layout(config),
}
card = flags.Gpu(*json.loads(sys.argv[2]))
pool = flags.Pool(kvd_client.Memory.CUDA, 256 << 20, 60 << 30)
found = [flag._asdict() for flag in flags.flags_for(card, pool, True)]
config = config_of([*found, {"name": "--block-size", "value": "32"}])
snapshot = SimpleNamespace(total_memory=card.total, free_memory=card.free, device_="cuda:0")
asked = request_memory(snapshot, config.cache_config)
config.cache_config.gpu_memory_utilization = 0.92
try:
    request_memory(snapshot, config.cache_config)
    refused = ""
except ValueError as fault:
    refused = str(fault)
with mock.patch.object(connector, "current_platform") as platform:
    layout = get_kv_connector_cache_layout(config)
print(json.dumps({"here": here, "card": {"asked": asked, "refused": refused, "layout": layout}}))
"""
# An H100 beside kvd's pool of 60 GiB: docs/vllm.md shows the command for it.
CARD = ("NVIDIA H100 80GB HBM3", int(79.2 * 2**30), int(18.6 * 2**30))
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


def setUpModule() -> None:
    global bench
    bench = Bench()
    unittest.addModuleCleanup(bench.close)


def records(printed: str) -> list[dict[str, Any]]:
    """What a script said, without what vLLM logs."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def faults(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {found["what"].split(".")[-1]: found["fault"] for found in findings if found["fault"]}


class Doctor(unittest.TestCase):
    def test_finds_nothing_wrong_with_the_pinned_vllm(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=16))
        run = bench.run(DOCTOR, KVD_ENDPOINT=kvd.endpoint)
        self.assertEqual(run.returncode, 0, run.stderr)
        findings = json.loads(run.stdout)["findings"]
        self.assertEqual(faults(findings), {})
        ran = [found["what"].split(":")[0] for found in findings if " runs: " in found["what"]]
        self.assertEqual(ran, ["level 1 runs", "level 2 runs", "level 3 runs", "elastic runs"])
        self.assertTrue(kvd.all_returned())

    def test_tells_what_is_missing_from_what_nobody_has_tried(self) -> None:
        said = records(bench.warm(OTHERWISE, "/nonexistent"))
        self.assertEqual([each["status"] for each in said], [3, 3, 1])
        untouched, moved, missing = (each["findings"] for each in said)
        (runs,) = [each for each in untouched[:-1] if each["fault"]]
        self.assertIn("not tried: no kvd answers", runs["fault"])
        (found,) = [each for each in moved[:-1] if each["fault"] and each != runs]
        self.assertEqual((found["off"], runs["off"]), ("", ""))
        self.assertIn("its source has no 'set_xfer_handshake", found["fault"])
        self.assertEqual(faults(missing)["get_mem_pool_context"], "there is no get_mem_pool_context")
        self.assertIn("not (kv_cache_config, device, layout, kernel", faults(missing)["allocate_kv_cache"])
        self.assertEqual({each["off"] for each in missing if each["fault"]}, {"level 1", "the daemon"})

    def test_runs_what_names_do_not_show(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=16, dram_slabs=16))
        said = records(bench.warm(TRIED, kvd.endpoint))
        found = {each["without"]: each["findings"] for each in said}
        off = {name: [each["off"] for each in findings if each["off"]] for name, findings in found.items()}
        self.assertEqual(off, {
            "_STEPS": [], "allocate_kv_cache": ["level 1", "level 2", "level 3", "elastic"],
            "_handle_failed_recving": ["level 2"], "prepend_request": ["level 3"],
        }, found)  # fmt: skip
        (second,) = [each["fault"] for each in found["_handle_failed_recving"] if each["fault"]]
        self.assertIn("or set KVD_VLLM_PREFIXES=0", second)

    def test_looks_at_all_that_is_used(self) -> None:
        modules = {(name.module, name.path.split(".")[0]) for name in (*NAMES, *OPTIONAL)}
        parts = {part for name in NAMES for part in (name.attribute, name.path.split(".")[-1])}
        missing = []
        for path in sorted(PACKAGE.rglob("*.py")):
            if path.parent.name == "doctor":
                continue  # the directory itself tells that it cannot be made
            for module, name in used(path.read_text()):
                known = (module, name) in modules if module else name in parts
                missing += [] if known else [f"{path.name}: {module} {name}"]
        self.assertEqual(missing, [])

    def test_waits_for_a_kvd_that_has_just_been_started(self) -> None:
        kvd = KvdProcess()
        kvd.kill()
        self.addCleanup(kvd.__exit__)
        with mock.patch.dict(os.environ, KVD_ENDPOINT=kvd.endpoint), ThreadPoolExecutor() as pool, \
                mock.patch.multiple(doctor, look=list, _trials=lambda _: []):  # fmt: skip
            found = pool.submit(doctor.examine, 60.0)
            kvd.start()
            self.assertEqual(found.result()[0]["findings"][-1]["fault"], "")


class Lacking(unittest.TestCase):
    def test_something_a_vllm_starts_and_says_what_is_off(self) -> None:
        kvd = self.enterContext(KvdProcess(slabs=32, dram_slabs=32))
        said = {
            "the package": "kvd is off: vLLM", "nothing": "", "level 1": "kvd is off: vLLM", "level 2": "no block is stored or parked",
            "elastic": "this vLLM lacks", "level 3": "kvd decides nothing: vLLM",
        }  # fmt: skip
        engine = {**on_kvd({"elastic": True}), "scheduler_cls": "kvd_vllm.KvdScheduler"}
        log = bench.folder / "lacking.log"
        given = json.dumps({"engine": engine, "lacks": list(said)})
        process = bench.start("lacking_engine.py", [str(bench.model), given], log, kvd.endpoint)
        printed, _ = process.communicate(timeout=600)
        answers = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
        self.assertEqual(len(answers), len(said), log.read_text()[-4000:])
        self.assertEqual([each for each in answers if each != answers[0]], [])
        logs = printed.split("it lacks ")
        for lacks, text in said.items():
            (part,) = [each for each in logs if each.startswith(f"{lacks}\n")]
            self.assertIn(text, part)


class Flags(unittest.TestCase):
    def test_are_taken_by_vllms_own_checks(self) -> None:
        kvd = self.enterContext(KvdProcess())
        url = f"http://127.0.0.1:{kvd.port}"
        given = [str(bench.model), json.dumps(CARD)]
        (found,) = records(bench.warm(TAKEN, kvd.endpoint, given, KVD_ADMIN_URL=url))
        free = kvd.get("/v1/status")["pools"][0]["free_bytes"]
        self.assertEqual(found["here"], {"status": 0, "bytes": free, "scheduler": "KvdScheduler", "fits": True, "layout": None})
        card = found["card"]
        self.assertLessEqual(card["asked"], CARD[2])
        self.assertIn("Free memory on device", card["refused"], "vLLM's own share does not fit beside the pool")
        self.assertEqual(card["layout"], "BLNHC")

    def test_stand_in_the_guide_for_a_card_of_80_gb(self) -> None:
        pool = flags.Pool(kvd_client.Memory.CUDA, 256 << 20, 60 << 30)
        text = flags.command("MODEL", flags.flags_for(flags.Gpu(*CARD), pool, True), None)
        self.assertIn(text, (ROOT / "docs/vllm.md").read_text())

    def test_refuse_with_the_remedy_what_cannot_start(self) -> None:
        card, pool = flags.Gpu(*CARD), flags.Pool(kvd_client.Memory.CUDA, 256 << 20, 60 << 30)
        cases = [
            ((card._replace(free=2 << 30), pool, True), "pool.hbm smaller"),
            ((card, pool._replace(free=1 << 20), True), "pool.slab smaller"),
            ((card, pool._replace(memory=kvd_client.Memory.HOST), True), "--backend cuda"),
            ((None, pool, False), "--backend host"),
        ]
        for given, remedy in cases:
            with self.assertRaisesRegex(flags.NoFlags, remedy):
                flags.flags_for(*given)

    def test_are_a_part_each_where_several_share(self) -> None:
        pool = flags.Pool(kvd_client.Memory.CUDA, 256 << 20, 60 << 30)
        values = {flag.name: flag.value for flag in flags.flags_for(flags.Gpu(*CARD), pool, False, 3)}
        self.assertEqual(values["--kv-cache-memory-bytes"], str(20 << 30))
        self.assertEqual(values["--gpu-memory-utilization"], "0.07")
        self.assertEqual(values["--scheduler-cls"], "kvd_vllm.KvdScheduler")


class Guide(unittest.TestCase):
    def test_says_of_gpus_what_the_doctor_says(self) -> None:
        text = " ".join((ROOT / "docs/vllm.md").read_text().split())
        never = text.split("Never run: ")[1].split("## ")[0]
        for each in doctor.NEVER_RUN:
            self.assertIn(each, never)
        self.assertIn(doctor.RUN_ONCE.removeprefix("on a GPU, an H200: "), text)


if __name__ == "__main__":
    ctest.main()
