"""kvd under systemd, by the package's own unit and the drop-in that kvd prints: it comes back after every
end, though an engine maps four fifths of HBM. The systemd is one of the test's own, in namespaces and
control groups of its own; so this takes root. KVD_TEST_ENDS says how often kvd ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Any

import ctest
import kvd_client
from kvd_process import free_port, poll_until

HERE = Path(__file__).resolve()
UNIT = HERE.parents[3] / "deploy" / "package" / "system" / "kvd.service"
BIN = Path(os.environ.get("KVDTEST_BIN_DIR", ""))
SYSTEMD = Path("/lib/systemd/systemd")
POOLS = ["--backend", "host", "--pool.hbm", "512MiB", "--pool.dram", "128MiB", "--pool.slab", "32MiB"]
MOST_OF_HBM = 410 << 20
PATIENCE_S = 60.0


def hierarchies() -> dict[str, str]:
    """The folders of control groups version 1, and the file systems mounted there."""
    found = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        names = [each for each in options.split(",") if each not in ("rw", "relatime", "nosuid", "nodev", "noexec")]
        if kind == "cgroup":
            found[folder] = ",".join(["none", *names] if names[0].startswith("name=") else names)
    return found


def missing() -> str:
    """Why this cannot run here; empty: it can."""
    if os.geteuid() != 0:
        return "a systemd of the test's own takes root"
    if not SYSTEMD.exists() or shutil.which("unshare") is None:
        return "there is no systemd, or no unshare"
    if not any(options == "memory" for options in hierarchies().values()):
        return "there are no control groups of version 1 with memory"
    return ""


# ---- inside, as a service beside kvd ----


class Drive:
    """Ends kvd, and times how long until another one is ready."""

    def __init__(self, admin_port: int) -> None:
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.boot = ""
        assert poll_until(self.is_another, PATIENCE_S), "kvd does not start"
        self.client = kvd_client.Client("/run/kvd/attach.sock", timeout=PATIENCE_S)
        self.take()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.admin + path, timeout=5) as answer:
            return json.load(answer)

    def is_another(self) -> bool:
        """Whether another kvd than before is ready."""
        with contextlib.suppress(OSError, ValueError):
            boot = str(self.get("/v1/status")["boot_id"])
            urllib.request.urlopen(self.admin + "/readyz", timeout=5).close()
            known, self.boot = self.boot, boot
            return boot != known
        return False

    def missing_bytes(self) -> int:
        return sum(pool["missing_bytes"] for pool in self.get("/v1/status")["pools"])

    def take(self) -> None:
        self.region = self.client.allocate(MOST_OF_HBM, timeout=PATIENCE_S)

    def end(self, *command: str) -> dict[str, float]:
        begun = time.monotonic()
        subprocess.run(["systemctl", *command], check=True)
        assert poll_until(self.is_another, PATIENCE_S), f"kvd does not come back after {command}"
        took = {"seconds": time.monotonic() - begun, "missing": self.missing_bytes()}
        self.client.ping(timeout=PATIENCE_S)
        self.region.free(timeout=PATIENCE_S)
        self.take()
        assert poll_until(lambda: self.missing_bytes() == 0, PATIENCE_S), "slabs stay without memory"
        return took


def drive(admin_port: int, count: int) -> dict[str, Any]:
    driven = Drive(admin_port)
    kills, restarts = [], []
    for _ in range(count):
        kills.append(driven.end("kill", "--signal=KILL", "--kill-who=main", "kvd"))
        restarts.append(driven.end("restart", "kvd"))
    return {"killed": kills, "restarted": restarts}


# ---- outside ----


class Machine:
    """A systemd with units of the test's."""

    def __init__(self, folder: Path) -> None:
        self.name = f"kvd-test-{os.getpid()}"
        self.folders = [Path(folder) for folder in hierarchies()]
        enter, mount = [], ["umount -R /sys/fs/cgroup", "mount -t tmpfs tmpfs /sys/fs/cgroup"]
        for at, options in hierarchies().items():
            group = f"{at}/{self.name}"
            enter.append(f"mkdir {group}")
            for file in ("cpuset.cpus", "cpuset.mems"):
                enter.append(f"[ ! -f {at}/{file} ] || cat {at}/{file} >{group}/{file}")
            enter.append(f"echo $$ >{group}/cgroup.procs")
            mount += [f"mkdir {at}", f"mount -t cgroup -o {options} cgroup {at}"]
        mount += ["mount -t tmpfs -o mode=755 tmpfs /run", "mkdir -p /run/systemd/system /run/lock",
                  f"cp -r {folder}/units/. /run/systemd/system", "unset NOTIFY_SOCKET",
                  f"exec {SYSTEMD} --system --unit=test.target --log-target=console --show-status=0"]  # fmt: skip
        within = "set -e; " + "; ".join(mount)
        script = "set -e; " + "; ".join(enter) + (
            "; exec unshare --fork --pid --mount --cgroup --uts --mount-proc --propagation private "
            "--kill-child sh -c '" + within + "'"
        )  # fmt: skip
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "container": "kvd-test"},
            )  # fmt: skip

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for folder in self.folders:
            poll_until(lambda: self.remove(folder / self.name))  # noqa: B023

    def remove(self, group: Path) -> bool:
        for root, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(root)
        return not group.exists()


def printed_unit() -> str:
    command = [str(BIN / "kvd"), *POOLS, "--print-unit"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Systemd(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvd-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def units(self, count: int) -> None:
        admin, metrics = free_port(), free_port()
        units = self.folder / "units"
        (units / "kvd.service.d").mkdir(parents=True)
        shutil.copy(UNIT, units)
        (units / "kvd.service.d" / "1-printed.conf").write_text(printed_unit())
        start = [str(BIN / "kvd"), *POOLS, "--admin.port", str(admin), "--metrics.port", str(metrics)]
        # Nobody named kvd is needed here, and no other unit. The build may be anywhere.
        (units / "kvd.service.d" / "2-test.conf").write_text(
            "[Unit]\nDefaultDependencies=no\n[Service]\nUser=root\nGroup=root\nPrivateTmp=no\nProtectHome=no\nExecStart=\n"
            f"ExecStart={' '.join(start)}\n"
        )
        python = "".join(f"Environment={name}={os.environ[name]}\n"
                         for name in ("PYTHONPATH", "KVD_CLIENT_LIBRARY", "KVDTEST_BIN_DIR"))  # fmt: skip
        (units / "drive.service").write_text(
            f"[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\n{python}"
            f"ExecStart={sys.executable} {HERE} --drive {admin} {count} {self.folder}/result\n"
        )
        (units / "test.target").write_text(
            "[Unit]\nDefaultDependencies=no\nWants=kvd.service drive.service\n"
        )

    def test_it_comes_back_after_every_end(self) -> None:
        if why := missing():
            self.skipTest(why)
        count = int(os.environ.get("KVD_TEST_ENDS", "3"))
        self.units(count)
        machine = Machine(self.folder)
        self.addCleanup(machine.close)
        result = self.folder / "result"
        self.assertTrue(poll_until(result.exists, PATIENCE_S + 30 * count), machine.log.read_text())
        ends = json.loads(result.read_text())
        self.assertNotIn("fault", ends, machine.log.read_text())
        for kind, times in ends.items():
            seconds = [each["seconds"] for each in times]
            print(f"{kind}, {len(seconds)} times: seconds until ready: least {min(seconds):.2f}, "
                  f"median {statistics.median(seconds):.2f}, most {max(seconds):.2f}")  # fmt: skip
            self.assertEqual(len(times), count)
        self.assertNotIn("OOM", machine.log.read_text())


def main() -> None:
    if sys.argv[1:2] != ["--drive"]:
        return ctest.main()
    admin_port, count, result = sys.argv[2:]
    try:
        ends = drive(int(admin_port), int(count))
    except (AssertionError, OSError, kvd_client.KvdError) as fault:
        ends = {"fault": repr(fault)}
    Path(result + ".new").write_text(json.dumps(ends))
    Path(result + ".new").rename(result)


if __name__ == "__main__":
    main()
