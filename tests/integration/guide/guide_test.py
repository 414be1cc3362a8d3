"""The guide: its examples run as they stand, its lists are what there is, its links lead somewhere."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ctest
from kvd_process import KvdProcess, free_port

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
BINARIES = os.environ["KVDTEST_BIN_DIR"]
LIBRARIES = str(Path(os.environ["KVD_CLIENT_LIBRARY"]).parent)
sys.path.insert(0, str(DOCS))

import follow  # noqa: E402
import reference  # noqa: E402
import support  # noqa: E402

TEXTS = {path.relative_to(ROOT): path.read_text()
         for path in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]}  # fmt: skip


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


class Examples(unittest.TestCase):
    """What stands in attach.md, compiled and run on a real kvd."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kvd-guide-")
        self.addCleanup(self.folder.cleanup)
        self.kvd = KvdProcess()
        self.addCleanup(self.kvd.__exit__)

    def run_program(self, *command: str) -> str:
        environment = {**os.environ, "KVD_ENDPOINT": self.kvd.endpoint,
                       "LD_LIBRARY_PATH": LIBRARIES}  # fmt: skip
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def compiled(self, source: str, suffix: str, *compiler: str) -> str:
        file = Path(self.folder.name, f"engine.{suffix}")
        file.write_text(source)
        program = str(file.with_suffix(""))
        subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", "-I", f"{ROOT}/client_lib/include",
                        str(file), "-L", LIBRARIES, "-lkvd_client", "-o", program],
                       check=True, timeout=120)  # fmt: skip
        return program

    def test_the_engine_that_kvd_schedules_makes_its_tokens(self) -> None:
        source, _ = blocks("attach.md", "cpp")
        inside = source.partition("int main() {\n")[2]
        self.assertLessEqual(len(inside.splitlines()) - 1, 20, "20 lines, says the page")
        program = self.compiled(source, "cpp", os.environ["KVDTEST_CXX"], "-std=c++20")
        self.assertEqual(self.run_program(program), "made 8 tokens in kvd's memory\n")
        counters = self.kvd.get("/v1/status")["counters"]
        self.assertGreaterEqual(counters["steps"], 9)

    def test_the_engines_that_rent_memory_get_it(self) -> None:
        programs = [
            (self.compiled(blocks("attach.md", "cpp")[1], "cpp", os.environ["KVDTEST_CXX"],
                           "-std=c++20"),),
            (self.compiled(blocks("attach.md", "c")[0], "c", os.environ["KVDTEST_CC"],
                           "-std=c11"),),
            (sys.executable, "-c", blocks("attach.md", "python")[0]),
        ]  # fmt: skip
        for program in programs:
            self.assertEqual(self.run_program(*program), f"kvd lent {self.kvd.slab} bytes\n")

    def test_an_engine_finds_what_it_computed_before(self) -> None:
        printed = self.run_program(sys.executable, "-c", blocks("attach.md", "python")[1])
        self.assertEqual(printed, "found 1\nblock 7 begins with b'kkk'\n")


class Typed(unittest.TestCase):
    """What the pages say is typed, on the programs of this build. `sh deploy/package.sh follow` types
    all of it in an empty Debian."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="kvd-guide-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.admin, self.metrics, self.engine = free_port(), free_port(), free_port()

    def type_page(self, page: str, omitted: tuple[str, ...] = (), before: str = "") -> str:
        left_out = follow.LEFT_OUT.get(page, {}) | {start: "not here" for start in omitted}
        script = before + follow.script(page, left_out)
        for there, here in {
            "127.0.0.1:8470": f"127.0.0.1:{self.admin}",
            "127.0.0.1:9470": f"127.0.0.1:{self.metrics}",
            "127.0.0.1:8480": f"127.0.0.1:{self.engine}",
            "kvd-engine --random": f"kvd-engine --port {self.engine} --random",
            "/run/kvd/": f"{self.folder}/kvd/",
            "/etc/kvd/kvd.toml": f"{ROOT}/deploy/config/kvd.toml",
            '"$PWD/build/quick': f'"{Path(BINARIES).parent}',
            "-S client_lib/": f"-S {ROOT}/client_lib/",
        }.items():
            script = script.replace(there, here)
        runtime = {"XDG_RUNTIME_DIR": str(self.folder),
                   "KVD_PATHS_RUNTIME_DIR": f"{self.folder}/kvd",
                   "KVD_ENDPOINT": f"{self.folder}/kvd/attach.sock",
                   "KVD_ADMIN_URL": f"http://127.0.0.1:{self.admin}",
                   "KVD_ADMIN_PORT": str(self.admin), "KVD_METRICS_PORT": str(self.metrics),
                   "PATH": f"{BINARIES}:{os.environ['PATH']}"}  # fmt: skip
        log = self.folder / "log"
        with log.open("w") as out:
            shell = subprocess.Popen(["sh", "-e", "-c", script], env={**os.environ, **runtime},
                                     stdout=out, cwd=self.folder, start_new_session=True)  # fmt: skip
        try:
            status = shell.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.fail(f"{page} keeps a reader waiting:\n{log.read_text()}")
        finally:
            with contextlib.suppress(ProcessLookupError):  # it left no process in the background
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        self.assertEqual(status, 0, f"{page} stops a reader:\n{log.read_text()}")
        self.assertEqual(follow.missing(page, log.read_text(), left_out), [], log.read_text())
        return log.read_text()

    def test_the_quick_start(self) -> None:
        printed = self.type_page("quickstart.md", ("sh deploy/ci/install-deps.sh", "cmake", "export PATH"))
        self.assertIn('"text"', printed, "an answer of the engine")

    def test_the_claims_hold(self) -> None:
        self.type_page("claims.md", ("export PATH",))

    def test_pages_beside_a_running_kvd(self) -> None:
        start = ("kvd --backend host --pool.hbm 16MiB --pool.dram 16MiB --pool.slab 2MiB &\n"
                 "until kvdctl status >/dev/null 2>&1; do sleep 0.1; done\n")  # fmt: skip
        for page in ("configuration.md", "console.md", "rest.md", "metrics.md", "alerts.md",
                     "nodes.md", "troubleshooting.md"):  # fmt: skip
            self.type_page(page, before=start)
        self.type_page("attach.md", ("sudo apt", "python3 -m venv", "venv/bin"), start)
        load = (f"kvd-engine --port {self.engine} --random layers=4,hidden=256 &\n"
                f"until curl -sf 127.0.0.1:{self.engine}/health >/dev/null; do sleep 0.1; done\n")
        self.type_page("should.md", before=start + load)
        printed = self.type_page("policies.md", ("kvd-sim compare --policies unified --seeds", "kvd-sim compare --policies unified,fcfs",
                                                  "kvd-sim compare --policies unified,lvf,fcfs,layerkv"), start)  # fmt: skip
        self.assertRegex(printed, r"rotation +lvf|rotation.policy +lvf|lvf")

    def test_every_block_says_what_it_is(self) -> None:
        for page in ["../README.md", *(path.name for path in DOCS.glob("*.md"))]:
            for block in follow.blocks(page):
                self.assertIn(block.language, follow.LANGUAGES, block.name)
            follow.script(page, follow.LEFT_OUT.get(page, {}))  # leaves out only lines that exist

    def test_what_a_page_shows_is_looked_for(self) -> None:
        shown = follow.pattern("made 8 tokens of …  in 0.5 s")
        self.assertTrue(shown.search("made 12 tokens of mine   in 3 s"))
        self.assertFalse(shown.search("made no tokens of mine in 3 s"))
        self.assertFalse(follow.pattern('"errors":0,').search('"errors":5,'))
        with self.assertRaisesRegex(ValueError, "no command begins with"):
            follow.script("quickstart.md", {"fly": "nobody can"})
        output = "== attach.md:51\nmade no tokens\n"
        self.assertTrue(follow.missing("attach.md", output, {}))


class Support(unittest.TestCase):
    def test_each_cell_is_a_test_that_ran(self) -> None:
        (pinned, one), *others = support.versions().items()
        name = one.replace("\\", "")
        with tempfile.TemporaryDirectory(prefix="kvd-guide-") as folder:
            files = [Path(folder, each) for each in ("before.xml", "after.xml")]
            for file, second in zip(files, ("run", "fail"), strict=True):
                file.write_text(f'<testsuite><testcase name="{name}level1" status="run"/>'
                                f'<testcase name="{name}level2" status="{second}"/>'
                                f'<testcase name="{name}level3" status="notrun"/></testsuite>')  # fmt: skip
            page = support.page(support.results(files))
        self.assertIn(f"| vLLM {pinned} | LLaMA | yes: `{name}level1` | **fails**: `{name}level2` | not tried |", page)
        for version, _ in others:
            self.assertIn(f"| vLLM {version} | LLaMA | not tried |", page)

    def test_the_page_has_every_engine_and_version(self) -> None:
        text = (DOCS / "support.md").read_text()
        for row in support.rows():
            self.assertIn(f"\n| {row.engine} | {row.model} | ", text, "run: python3 docs/support.py JUNIT.xml...")


class Lists(unittest.TestCase):
    def test_tables_are_what_the_programs_say(self) -> None:
        for name in reference.TABLES:
            self.assertEqual((DOCS / name).read_text(), reference.page(name, BINARIES),
                             "run: python3 docs/reference.py BUILD/bin")  # fmt: skip
        self.assertGreater(reference.keys_table(BINARIES).count("\n| `"), 40)
        self.assertGreater(reference.metrics_table(BINARIES).count("\n| `"), 50)

    def test_pages_name_metrics_that_there_are(self) -> None:
        known = set(re.findall(r"^\| `(kvd_\w+)`", reference.metrics_table(BINARIES), re.M))
        others = {"kvd_client", "kvd_sglang", "kvd_vllm", "kvd_digest",  # no metrics
                  "kvd_ttft_s", "kvd_tbt_s", "kvd_gap_s", "kvd_retain_s",
                  "kvd_pin", "kvd_demote", "kvd_prefetch_s"}  # fmt: skip
        for path in DOCS.glob("*.md"):
            named = set(re.findall(r"`(kvd_\w+)[`{]", path.read_text()))
            self.assertLessEqual({n for n in named if not n.startswith("kvd_last")} - others, known,
                                 path.name)  # fmt: skip

    def test_rest_page_has_every_path_and_method(self) -> None:
        with KvdProcess() as kvd:
            paths = kvd.get("/openapi.json")["paths"]
        served = {path: sorted(method.upper() for method in methods)
                  for path, methods in paths.items()}  # fmt: skip
        rows = re.findall(r"^\| `(/\S+)` \| ([A-Z, ]+) \|", (DOCS / "rest.md").read_text(), re.M)
        self.assertEqual({path: sorted(methods.split(", ")) for path, methods in rows}, served)

    def test_pages_name_keys_that_there_are(self) -> None:
        known = set(re.findall(r"^\| `([a-z_.0-9]+)`", reference.keys_table(BINARIES), re.M))
        groups = {key.split(".")[0] for key in known if "." in key} - {"slo"}
        for path in DOCS.glob("*.md"):
            named = re.findall(r"`([a-z]+(?:\.[a-z_]+)+)(?: ?=[^`]*)?`", path.read_text())
            keys = {key for key in named if key.split(".")[0] in groups}
            self.assertLessEqual(keys - {"admin.token", "cache.py"}, known, path.name)  # a file


class Links(unittest.TestCase):
    def test_lead_somewhere(self) -> None:
        for path, text in TEXTS.items():
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"https?:", target):
                    continue
                file, _, anchor = target.partition("#")
                there = (ROOT / path).parent / file if file else ROOT / path
                self.assertTrue(there.exists(), f"{path}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(there.read_text()), f"{path}: {target}")

    def test_the_guide_names_each_of_its_pages(self) -> None:
        index = (DOCS / "README.md").read_text()
        for page in DOCS.glob("*.md"):
            self.assertTrue(page.name == "README.md" or f"({page.name})" in index, page.name)


if __name__ == "__main__":
    ctest.main()
