"""KVD_VLLM=1 on real vLLM processes: what no flag says otherwise is set, and nothing without it."""

from __future__ import annotations

import json
import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess
from served import VllmServer
from vllm_process import Bench, on_kvd

SET = "kvd: KVD_VLLM sets --kv-transfer-config '{\"kv_connector\": \"KvdConnector\", \"kv_role\": \"kv_both\"}'"
IN_THE_POOL = "lies in kvd's pool"
OTHER = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    stock = bench.answers("stock", [{}])[0]


class Variable(unittest.TestCase):
    def kvd(self) -> KvdProcess:
        return self.enterContext(KvdProcess(slabs=16, dram_slabs=16))

    def run_with(self, name: str, kvd: KvdProcess, value: str, **engine: Any) -> str:
        """What an engine logs whose answers are stock's."""
        with bench.engine(name, environment={"KVD_VLLM": value, "KVD_ENDPOINT": kvd.endpoint}, engine=engine) as run:
            self.assertEqual(run.answers()[0]["tokens"], stock["tokens"])
            return run.log

    def test_sets_both_flags_and_says_so(self) -> None:
        log = self.run_with("both", self.kvd(), "1")
        self.assertIn(f"{SET} and --scheduler-cls kvd_vllm.KvdScheduler", log)
        self.assertEqual(log.count(IN_THE_POOL), 1)

    def test_is_off_where_it_is_not_set_or_says_no(self) -> None:
        log = self.run_with("no", self.kvd(), "0")
        self.assertNotIn("KVD_VLLM", log)
        self.assertNotIn(IN_THE_POOL, log)

    def test_flags_that_are_given_win(self) -> None:
        kvd = self.kvd()
        stocks = "vllm.v1.core.sched.scheduler.Scheduler"
        log = self.run_with("scheduler", kvd, "1", scheduler_cls=stocks)
        self.assertIn(f"{SET}\n", log)
        other = {**OTHER, "kv_connector_extra_config": {"shared_storage_path": str(bench.folder / "storage")}}
        log = self.run_with("other", kvd, "1", kv_transfer_config=other)
        self.assertIn("KVD_VLLM changes nothing, as --kv-transfer-config with ExampleConnector says otherwise", log)
        self.assertNotIn(IN_THE_POOL, log)
        log = self.run_with("priority", kvd, "1", scheduling_policy="priority")
        self.assertIn("vLLM's own scheduler runs, as --scheduling-policy is priority", log)
        self.assertIn(IN_THE_POOL, log)
        log = self.run_with("options", kvd, "1", **on_kvd({"engine_name": "chats"}))
        self.assertIn("kvd: KVD_VLLM sets --scheduler-cls kvd_vllm.KvdScheduler", log)

    def test_vllm_serve_needs_nothing_else(self) -> None:
        kvd = self.kvd()
        server = self.enterContext(VllmServer(bench, "serve", KVD_VLLM="1", KVD_ENDPOINT=kvd.endpoint))
        server.wait()
        asked = {"prompt": list(range(5, 105)), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        status, reply = server.ask("POST", "/v1/completions", asked)
        self.assertEqual(status, 200, server.log[-4000:])
        self.assertEqual(json.loads(reply)["usage"]["completion_tokens"], 4)
        self.assertIn("vllm:kvd_stored_blocks", server.ask("GET", "/metrics")[1])
        text = server.log
        self.assertIn(SET, text)
        self.assertIn(IN_THE_POOL, text)


if __name__ == "__main__":
    ctest.main()
