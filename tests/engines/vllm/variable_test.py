"""KVD_VLLM=1 on real vLLM processes: what no flag says otherwise is set, and nothing without it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import unittest
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until
from vllm_process import Bench, on_kvd

SET = "kvd: KVD_VLLM sets --kv-transfer-config '{\"kv_connector\": \"KvdConnector\", \"kv_role\": \"kv_both\"}'"
IN_THE_POOL = "lies in kvd's pool"
PATIENCE_S = 300.0
END_S = 60.0
OTHER = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


def setUpModule() -> None:
    global bench, stock
    bench = Bench()
    unittest.addModuleCleanup(bench.close)
    stock = bench.answers("stock", [{}])[0]


def end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


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
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        log = bench.folder / "serve.log"
        command = [
            sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(bench.model), "--host", "127.0.0.1",
            "--port", str(port), "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager",
            "--max-model-len", "1024", "--block-size", "32", "--kv-cache-memory-bytes", str(16 << 20),
        ]  # fmt: skip
        environment = {**bench.environment, "KVD_VLLM": "1", "KVD_ENDPOINT": kvd.endpoint}
        with log.open("w") as out:
            server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        self.addCleanup(end, server)
        self.wait_for(server, port, log.read_text)
        asked = {"prompt": list(range(5, 105)), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200, log.read_text()[-4000:])
        self.assertEqual(json.load(reply)["usage"]["completion_tokens"], 4)
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        self.assertIn("vllm:kvd_stored_blocks", metrics)
        text = log.read_text()
        self.assertIn(SET, text)
        self.assertIn(IN_THE_POOL, text)

    def wait_for(self, server: subprocess.Popen[bytes], port: int, log: Any) -> None:
        def serves() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                    connection.request("GET", "/health")
                    return connection.getresponse().status == 200
            return server.poll() is not None

        self.assertTrue(poll_until(serves, PATIENCE_S) and server.poll() is None, log()[-4000:])


if __name__ == "__main__":
    ctest.main()
