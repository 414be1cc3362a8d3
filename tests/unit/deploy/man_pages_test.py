"""The man pages say what --help says, and troff has no complaint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ctest

ROOT = Path(__file__).parents[3]
BINARIES = Path(os.environ["KVDTEST_BIN_DIR"])
sys.path.insert(0, str(ROOT / "deploy/package"))

import man_pages  # noqa: E402

PROGRAMS = [*man_pages.PAGES, "kvd-admin", "kvd-lab", "kvd-bench"]


def plain(roff: str) -> str:
    text = re.sub(r"\\f[BR]|\\&", "", roff)
    text = re.sub(r"\\\[u([0-9A-F]+)\]", lambda found: chr(int(found[1], 16)), text)
    return text.replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`").replace("\\e", "\\")


class ManPages(unittest.TestCase):
    def setUp(self) -> None:
        self.names = [name for name in man_pages.PAGES if (BINARIES / name).exists()]
        self.assertLessEqual({"kvd", "kvdctl"}, set(self.names))
        self.pages = {name: man_pages.page(BINARIES / name) for name in self.names}

    def test_hold_every_line_of_help(self) -> None:
        for name, page in self.pages.items():
            lines = plain(page).splitlines()
            for line in man_pages.help_of(BINARIES / name, []).rstrip().splitlines():
                self.assertIn(line, lines, name)

    def test_have_a_section_for_each_subcommand(self) -> None:
        page = self.pages["kvdctl"]
        for name in ("status", "doctor", "cache clear", "policy set", "slo set"):
            self.assertIn(f"\n.SS kvdctl {name}\n", page)
        self.assertEqual(page.count("Exit codes:"), 1)

    def test_every_program_has_a_version_and_the_same_status_for_wrong_use(self) -> None:
        for name in filter(lambda name: (BINARIES / name).exists(), PROGRAMS):
            for arguments, status in ((["--version"], 0), (["-V"], 0), (["--help"], 0), (["-h"], 0),
                                      (["--no-such"], 2), (["--versoin"], 2)):  # fmt: skip
                run = subprocess.run([BINARIES / name, *arguments], capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL, timeout=60)  # fmt: skip
                self.assertEqual(run.returncode, status, f"{name} {arguments}: {run.stderr}")
                if arguments in (["--version"], ["-V"]):
                    self.assertRegex(run.stdout, rf"^{name} \d+\.\d+\.\d+\n$")
                if arguments == ["--versoin"]:
                    self.assertRegex(run.stderr, "--versoin.*--version", name)

    def test_a_misspelt_word_is_told_the_nearest(self) -> None:
        for words, nearest in (("kvdctl polcy set a=b", "policy"), ("kvdctl --url u stauts", "status"),
                               ("kvdctl drain 3 --dedline=60", "--deadline"), ("kvd-sim comapre", "compare"),
                               ("kvd-sim run --polcy x", "--policy"), ("kvd-lab repoduce", "reproduce"),
                               ("kvd-engine --modl x", "--model"), ("kvd-pattern --request 2", "--requests"),
                               ("kvd-plan rotat", "rotate"), ("kvd-plan rotate --bacth", "--batch"),
                               ("kvd-holder --kep 3 kvd", "--keep"), ("kvd --pool.hbn 1GiB", "pool.hbm")):  # fmt: skip
            name, *arguments = words.split()
            if not (BINARIES / name).exists():
                continue
            with self.subTest(words):
                run = subprocess.run([BINARIES / name, *arguments], capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL, timeout=60)  # fmt: skip
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn(nearest, run.stderr)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_are_clean_troff(self) -> None:
        for name, page in self.pages.items():
            run = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z"], input=page, text=True,
                                 capture_output=True, check=True)  # fmt: skip
            complaints = [line for line in run.stderr.splitlines() if "can't break line" not in line
                          and "cannot adjust" not in line]  # fmt: skip
            self.assertEqual(complaints, [], name)

    def test_are_written_where_man_looks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, ROOT / "deploy/package/man_pages.py", BINARIES, folder,
                            *self.names], check=True)  # fmt: skip
            self.assertTrue(Path(folder, "man8/kvd.8.gz").exists())
            self.assertTrue(Path(folder, "man1/kvdctl.1.gz").exists())


if __name__ == "__main__":
    ctest.main()
