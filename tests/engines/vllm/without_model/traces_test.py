"""Spans of a parked and restored request, by way of vLLM's tracing and a real OpenTelemetry collector."""

from __future__ import annotations

import http.server
import json
import os
import queue
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any

import ctest
from kvd_process import KvdProcess, free_port, poll_until
from model_free import LAYERS, PAGE, TOKENS, Rig, write_config

from vllm.tracing import init_tracer

import kvd_client
from kvd_vllm.scheduler import KvdScheduler

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NOBODY = kvd_client.Decision([], [], None)
MOST_APART_S, ROTATIONS = 0.005, 3
COLLECTOR = os.environ.get("KVDTEST_COLLECTOR", "")


class Backend(http.server.BaseHTTPRequestHandler):
    """The address to which the collector's own spans go."""

    spans: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in told["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    self.spans.put(span)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Turns(KvdScheduler):
    """Does what the test says."""

    turn = NOBODY

    def kvd_has_a_say(self) -> bool:
        return True

    def kvd_decide(self) -> kvd_client.Decision:
        self.kvd_describe()
        turn, self.turn = self.turn, NOBODY
        return turn


def _answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@unittest.skipUnless(COLLECTOR, "no OpenTelemetry collector: sh deploy/ci/collector.sh --fetch")
class Traces(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.model = write_config(Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvd-traces-"))))
        cls.kvd = cls.enterClassContext(KvdProcess(slabs=64, dram_slabs=16))
        backend = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
        threading.Thread(target=backend.serve_forever, daemon=True).start()
        cls.addClassCleanup(backend.server_close)
        cls.addClassCleanup(backend.shutdown)
        port = free_port()
        config = {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{port}"}}}},
            "exporters": {"otlp_http": {
                "endpoint": f"http://127.0.0.1:{backend.server_port}", "encoding": "json", "compression": "none",
            }},
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }  # fmt: skip
        collector = subprocess.Popen([COLLECTOR, "--config", f"yaml:{json.dumps(config)}"])
        cls.addClassCleanup(collector.wait)
        cls.addClassCleanup(collector.kill)
        assert poll_until(lambda: _answers(port)), "the collector does not listen"
        cls.endpoint = f"http://127.0.0.1:{port}"
        init_tracer("test", cls.endpoint)  # as vLLM's own start does

    def rig(self, **engine: Any) -> Rig:
        rig = Rig(self.kvd.endpoint, self.model, Turns, 1, options={"prefixes": False}, engine=engine)
        self.addCleanup(rig.close)
        return rig

    def spans(self, count: int) -> list[dict[str, Any]]:
        return [Backend.spans.get(timeout=30) for _ in range(count)]

    def test_parked_and_restored_spans_add_up_to_the_gap(self) -> None:
        rig = self.rig(otlp_traces_endpoint=self.endpoint)
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        name = rig.add(list(range(3, 3 + 3 * TOKENS)), 20, trace_headers=headers)
        other = rig.add([5] * TOKENS, 400)
        self.let_in(rig, name, other)
        while len(rig.given[name]) < 3:
            rig.step()
        gaps = [self.gap_of(rig, name) for _ in range(ROTATIONS)]
        self.assertIn(other, rig.unfinished)  # so that somebody ran meanwhile
        rig.run_dry()
        rig.check_answers()
        self.assertEqual(rig.computed_twice(), {})
        wait, *spans = self.spans(1 + 2 * ROTATIONS)
        self.assertEqual(wait["name"], "kvd.wait")
        self.assertEqual([span["name"] for span in spans], ["kvd.parked", "kvd.restore"] * ROTATIONS)
        apart = []
        for gap, parked, restored in zip(gaps, spans[::2], spans[1::2], strict=True):
            self.assertEqual(parked["endTimeUnixNano"], restored["startTimeUnixNano"])
            took = sum(int(each["endTimeUnixNano"]) - int(each["startTimeUnixNano"]) for each in (parked, restored))
            print(f"gap {1e3 * gap:.2f} ms, spans {took / 1e6:.2f} ms")
            apart.append(abs(gap - took / 1e9))
            for span, reason in ((parked, "preempted"), (restored, "resumed")):
                self.assertEqual((span["traceId"], span["parentSpanId"]), (TRACE, SPAN))
                told = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
                self.assertEqual(told, {
                    "gen_ai.request.id": name, "kvd.reason": reason, "kvd.tier": "dram",
                    "kvd.bytes": str(4 * LAYERS * PAGE),
                })  # fmt: skip
        # The machine may be busy: a gap also has the two steps around it.
        self.assertLess(statistics.median(apart), MOST_APART_S)

    def gap_of(self, rig: Rig, name: str) -> float:
        """From one of its tokens to the next, between which it is parked for a while. In seconds."""
        begun, had = time.monotonic(), len(rig.given[name])
        rig.scheduler.turn = kvd_client.Decision([self.number(rig, name)], [], None)
        while time.monotonic() < begun + 3 * MOST_APART_S or rig.connector._planner.copies:
            rig.step()
        self.let_in(rig, name)
        while len(rig.given[name]) == had:
            rig.step()
        return time.monotonic() - begun

    def test_off_by_default(self) -> None:
        self.assertEqual(type(self.rig().connector._planner).__name__, "Planner")

    def number(self, rig: Rig, name: str) -> int:
        return rig.scheduler.kvd_number_of(rig.scheduler.requests[name])

    def let_in(self, rig: Rig, *names: str) -> None:
        rig.scheduler.kvd_describe()
        rig.scheduler.turn = kvd_client.Decision([], [self.number(rig, each) for each in names], None)


if __name__ == "__main__":
    ctest.main()
