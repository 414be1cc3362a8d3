"""What stands in front of kvd reaches it as it asks by default: Debian's nginx with the chart's own
configuration, HAProxy's checks, wget --spider, ab. All three servers: REST, metrics, kvd-engine."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import ctest
from kvd_process import KvdProcess, free_port, poll_until

SHIPPED = Path(__file__).parents[3] / "deploy/helm/kvd/files/nginx.conf"
PROXIES = Path(os.environ["KVDTEST_MONITORING"], "proxies")
ENVIRONMENT = {**os.environ, "LD_LIBRARY_PATH": f"{PROXIES}/usr/lib/x86_64-linux-gnu"}


def status_of(url: str, method: str = "GET") -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Proxies(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-proxies-")))
        self.kvd = self.enterContext(KvdProcess(metrics=True))

    def start(self, *command: object) -> None:
        process = subprocess.Popen([str(word) for word in command], env=ENVIRONMENT,
                                   stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

    def run_nginx(self, text: str) -> str:
        """The URL that it listens at."""
        port = free_port()
        for here, there in (("9470", self.kvd.metrics_port), ("8470", self.kvd.port),
                            ("9471", port), ("/tmp", self.folder)):  # fmt: skip
            self.assertIn(here, text)
            text = text.replace(here, str(there))
        file = self.folder / f"nginx-{port}.conf"
        file.write_text(text)
        self.start(PROXIES / "usr/sbin/nginx", "-c", file, "-e", self.folder / "nginx.log",
                   "-g", "daemon off;")  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        self.assertTrue(poll_until(lambda: status_of(f"{url}/") == 404), "nginx does not answer")
        return url

    def run_engine(self) -> int:
        port = free_port()
        self.start(f"{os.environ['KVDTEST_BIN_DIR']}/kvd-engine", "--endpoint", self.kvd.endpoint,
                   "--random", "layers=1,hidden=64", "--port", port)  # fmt: skip
        url = f"http://127.0.0.1:{port}/health"
        self.assertTrue(poll_until(lambda: status_of(url) == 200), "kvd-engine does not answer")
        return port

    def served(self) -> list[tuple[int, str]]:
        return [(self.kvd.port, "/readyz"), (self.kvd.metrics_port, "/metrics"),
                (self.run_engine(), "/health")]  # fmt: skip

    def test_the_charts_nginx_lets_metrics_and_readiness_through(self) -> None:
        text = SHIPPED.read_text()
        without = text.replace("proxy_http_version 1.1;", "")
        self.assertNotEqual(without, text)
        for configuration in (text, without):
            url = self.run_nginx(configuration)
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                self.assertIn("kvd_uptime_seconds ", answer.read().decode())
            self.assertEqual(status_of(f"{url}/readyz"), 200)
            self.assertEqual(status_of(f"{url}/metrics", "HEAD"), 200)
            self.assertEqual(status_of(f"{url}/v1/status"), 404, "REST stays inside")

    def test_haproxy_takes_all_for_alive(self) -> None:
        checks = ["", "GET {}", "HEAD {}"]  # the first: OPTIONS / HTTP/1.0, without a Host
        text = "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n"
        for number, (port, path) in enumerate(self.served()):
            for check, how in enumerate(checks):
                text += (f"backend b{number}{check}\n option httpchk {how.format(path)}\n"
                         f" server s 127.0.0.1:{port} check inter 200ms\n")  # fmt: skip
        port = free_port()
        text += f"frontend f\n bind 127.0.0.1:{port}\n stats enable\n stats uri /stats\n"
        file = self.folder / "haproxy.cfg"
        file.write_text(text)
        self.start(PROXIES / "usr/sbin/haproxy", "-f", file)
        states: dict[str, str] = {}

        def are_checked() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats;csv", timeout=10) as csv_:
                    rows = list(csv.DictReader(csv_.read().decode().splitlines()))
            except OSError:
                return False
            states.update({row["# pxname"]: row["check_status"] for row in rows if row["svname"] == "s"})
            return len(states) == 9 and all(state == "L7OK" for state in states.values())

        self.assertTrue(poll_until(are_checked, 20), f"not all are alive: {states}")

    def test_wget_and_ab_reach_all(self) -> None:
        for port, path in self.served():
            url = f"http://127.0.0.1:{port}{path}"
            spider = subprocess.run([PROXIES / "usr/bin/wget", "--spider", "--tries=1", "-nv", url],
                                    env=ENVIRONMENT, capture_output=True, text=True)  # fmt: skip
            self.assertEqual(spider.returncode, 0, f"{url}: {spider.stderr}")
            for how in ([], ["-i"], ["-k"]):
                ran = subprocess.run([PROXIES / "usr/bin/ab", "-n", "12", "-c", "3", "-l", *how, url],
                                     env=ENVIRONMENT, capture_output=True, text=True)  # fmt: skip
                self.assertRegex(ran.stdout, r"Complete requests: +12\n", ran.stderr)
                self.assertRegex(ran.stdout, r"Failed requests: +0\n")
                self.assertIsNone(re.search("Non-2xx", ran.stdout), f"{url} {how}: {ran.stdout}")


if __name__ == "__main__":
    ctest.main()
