"""What every program does with descriptors that are closed or full, with files that have no end or are no files, and
with a signal while it waits: each is started as a person or a script would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import ctest

BIN = Path(os.environ["KVDTEST_BIN_DIR"])
MOST_BYTES = 2 << 30  # bytes of addresses: a program that reads without end soon runs out of them
SMALL = ["--backend", "host", "--pool.hbm", "4MiB", "--pool.dram", "4MiB", "--pool.slab", "2MiB"]

PRINTS = [
    ["kvd", "--print-config"], ["kvd", "--print-unit"], ["kvd", "--check-config"], ["kvd", "--help"],
    ["kvd", "--version"], ["kvd-holder", "--help"], ["kvd-holder", "--version"], ["kvdctl", "--help"],
    ["kvdctl", "--json", "doctor"], ["kvd-pattern", "--help"], ["kvd-plan", "--help"], ["kvd-engine", "--help"],
    ["kvd-sim", "--help"], ["kvd-sim", "profiles"], ["kvd-lab", "reproduce"], ["kvd-bench", "--help"],
]  # fmt: skip


def command(words: list[str]) -> list[str]:
    return [str(BIN / words[0]), *words[1:]]


def is_built(words: list[str]) -> bool:
    return (BIN / words[0]).exists()


def run(words: list[str], redirect: str = "", files: bool = False) -> subprocess.CompletedProcess[str]:
    bound = f"ulimit -v {MOST_BYTES >> 10};" if files else ""
    return subprocess.run(
        ["/bin/sh", "-c", f'{bound} exec "$@" {redirect}', "sh", *command(words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


class Output(unittest.TestCase):
    def test_that_cannot_be_written_is_no_success(self) -> None:
        for words in filter(is_built, PRINTS):
            for redirect in (">/dev/full", ">&-"):
                with self.subTest(" ".join(words) + redirect):
                    done = run(words, redirect)
                    self.assertGreater(done.returncode, 0)
                    self.assertLess(done.returncode, 126)
                    self.assertIn("standard output cannot be written", done.stderr)

    def test_that_can_is_one(self) -> None:
        for words in filter(is_built, PRINTS):
            with self.subTest(" ".join(words)):
                done = run(words)
                self.assertNotIn("cannot be written", done.stderr)
                self.assertNotEqual(done.stdout, "")


class Files(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-files-")))
        many = 100_000
        self.brackets = self.write("brackets", "[" * many + "]" * many)
        self.objects = self.write("objects", '{"a":' * many + "1" + "}" * many)
        self.snapshots = self.write("snapshots", '{"snapshots":[' + "[" * many + "]" * many + "]}")
        self.tables = self.write("tables", "a = " + "[" * many + "]" * many)
        self.names = self.write("names", ".".join(["a"] * many) + " = 1")
        self.odd = ["/dev/zero", "/", "/proc/self/mem", str(self.folder / "missing")]

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text + "\n")
        return str(path)

    def refused(self, words: list[str]) -> None:
        """The program ends with a status and a message, not by a signal, and within its bounds."""
        if not is_built(words):
            return
        with self.subTest(" ".join(words)):
            done = run(words, files=True)
            self.assertIn(done.returncode, (1, 2), done.stderr[-500:])
            self.assertNotEqual(done.stderr + done.stdout, "")

    def test_of_kvd_are_bounded(self) -> None:
        for file in [*self.odd, self.brackets, self.tables, self.names]:
            self.refused(["kvd", "--check-config", "--config", file])

    def test_of_kvd_plan_are_bounded(self) -> None:
        for file in [*self.odd, self.brackets, self.objects, self.snapshots]:
            self.refused(["kvd-plan", "rotate", "--in", file])
            self.refused(["kvd-plan", "rotate", "--batch", "--in", file])

    def test_of_kvd_sim_are_bounded(self) -> None:
        for file in [*self.odd, self.brackets, self.objects, self.tables, self.names]:
            self.refused(["kvd-sim", "run", "--profile", file])
            self.refused(["kvd-sim", "run", "--profile", "l20-llama2-7b", "--trace", file])
            self.refused(["kvd-lab", "grid", "--axes", file, "--out", str(self.folder / "out")])
            self.refused(["kvd-sim", "calibrate", "--base", "l20-llama2-7b", "--from", file])

    def test_of_the_others_are_bounded(self) -> None:
        for file in self.odd:
            self.refused(["kvdctl", "--token-file", file, "status"])
            self.refused(["kvd-engine", "--no-kvd", "--model", file])
        for file in (self.brackets, self.objects):
            self.refused(["kvd-engine", "--no-kvd", "--model", file])

    def test_that_do_not_come_keep_nobody_from_ending_the_program(self) -> None:
        pipe = str(self.folder / "pipe")
        os.mkfifo(pipe)
        for words in [
            ["kvd", "--check-config", "--config", pipe],
            ["kvd-plan", "rotate", "--in", pipe],
            ["kvd-sim", "run", "--profile", pipe],
            ["kvdctl", "--token-file", pipe, "status"],
        ]:
            if not is_built(words):
                continue
            with self.subTest(" ".join(words)):
                child = subprocess.Popen(command(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                writer = os.open(pipe, os.O_WRONLY)  # until the program has opened its end
                child.send_signal(signal.SIGTERM)
                try:
                    self.assertNotEqual(child.wait(30), 0)
                finally:
                    child.kill()
                    child.wait()
                    os.close(writer)


class Numbers(unittest.TestCase):
    """One that is none, or out of its range, is refused with a sentence that names it."""

    def test_are_looked_at(self) -> None:
        for words, named in [
            (["kvd-holder", "--keep", "x", "--", "true"], '"x"'),
            (["kvd-holder", "--keep", "5x", "--", "true"], '"5x"'),
            (["kvd-holder", "--keep", "0", "true"], '"0"'),
            (["kvd-holder", "--keep"], '""'),
            (["kvd-holder", "--nonsense"], "--nonsense"),
            (["kvd-holder"], "PROGRAM"),
            *[(["kvd-pattern", f"--{name}", "-1"], f"--{name}")
              for name in ("step-ms", "deadline", "ttft-slo-ms", "tbt-slo-ms", "gap-slo-ms", "requests", "device",
                           "layers-per-block", "block-tokens", "bytes-per-token")],
            *[(["kvd-engine", "--no-kvd", "--random", "layers=1", f"--{name}", "-1"], f"--{name}")
              for name in ("port", "threads", "max-requests", "ttft-slo", "tbt-slo", "kvd-away", "iteration-ms",
                           "chunk", "layers-per-block", "block-tokens")],
        ]:  # fmt: skip
            if not is_built(words):
                continue
            with self.subTest(" ".join(words)):
                done = run(words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(named, done.stderr.splitlines()[0])


class Start(unittest.TestCase):
    def test_of_an_engine_that_makes_its_model_can_be_stopped(self) -> None:
        words = ["kvd-engine", "--no-kvd", "--random", "layers=32,hidden=2048,heads=16"]
        if not is_built(words):
            self.skipTest("kvd-engine is not built")
        child = subprocess.Popen(command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        comes = Path(f"/proc/{child.pid}/status")
        while child.poll() is None and "VmRSS:\t" in comes.read_text():
            resident = int(comes.read_text().split("VmRSS:")[1].split()[0])
            if resident > 100 << 10:
                break
        child.terminate()
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0, err)
        self.assertNotIn("ready", out)

    def test_with_a_umask_of_nothing_works(self) -> None:
        with tempfile.TemporaryDirectory(prefix="kvd-umask-") as folder:
            child = subprocess.Popen(
                ["/bin/sh", "-c", 'umask 0777; exec "$@"', "sh",
                 *command(["kvd", *SMALL, "--pool.reserve", "0", "--paths.runtime_dir", folder + "/run",
                           "--admin.address", "", "--metrics.address", ""])],
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert child.stderr is not None
            said = ""
            for line in child.stderr:
                said += line
                if "ready:" in line:
                    break
            child.terminate()
            self.assertEqual(child.wait(60), 0, said)
            child.stderr.close()


if __name__ == "__main__":
    ctest.main()
