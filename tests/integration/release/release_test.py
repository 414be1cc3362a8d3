"""The wheels of a release bring their libraries along, and its bill of materials names them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import ctest

PACKAGE = Path(__file__).parents[3] / "deploy/package"
BUILD = Path(os.environ["KVD_CLIENT_LIBRARY"]).parents[1]
# What a wheel may ask a machine for: PEP 600, and auditwheel's policy.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libpthread|libresolv|libstdc\+\+|libgcc_s|libz)\.so")


class Release(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-release-")))

    def run_(self, *command: str | Path, **more: str) -> str:
        environment = {**os.environ, "BUILD": str(BUILD), "PYTHON": sys.executable, **more}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_wheels_bring_their_libraries_along(self) -> None:
        made = self.run_("sh", PACKAGE / "wheel.sh", self.folder, "kvd-client", "kvd-server", PORTABLE="1").split()
        for wheel in made:
            self.assertRegex(wheel, r"-py3-none-manylinux_2_\d+_\w+\.whl$")
            self.run_(sys.executable, "-m", "auditwheel", "show", wheel)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.folder / "tree")
                licences = [Path(name).name for name in archive.namelist() if ".dist-info/" in name]
            self.assertIn("LICENSE", licences)
            self.assertIn("libzmq5", licences)
        programs = [*(self.folder / "tree/kvd_server/bin").iterdir(), self.folder / "tree/kvd_client/libkvd_client.so"]
        self.assertEqual(len(programs), 8)
        for program in programs:
            for line in self.run_("ldd", program).splitlines():
                with self.subTest(program.name, line=line):
                    self.assertTrue(str(self.folder) in line or SYSTEM.match(Path(line.split()[0]).name), line)

    def test_bill_names_what_is_brought_along(self) -> None:
        bill = self.folder / "kvd.cdx.json"
        self.run_(sys.executable, PACKAGE / "sbom.py", BUILD, bill, "0.1.0")
        self.run_(sys.executable, PACKAGE / "sbom.py", "--check", bill)
        parts = {part["name"]: part for part in json.loads(bill.read_bytes())["components"]}
        self.assertRegex(parts["libzmq.so.5"]["purl"], r"^pkg:deb/debian/libzmq5@[^?]+\?arch=")
        self.assertEqual(parts["kvd"]["version"], "0.1.0")
        self.assertGreater(len(parts), 20)

    def test_all_parts_have_the_same_version(self) -> None:
        top, found = PACKAGE.parents[1], {}
        for file in ("CMakeLists.txt", "client_lib/python/pyproject.toml", "client_lib/python/kvd_client/__init__.py",
                     "deploy/package/server/pyproject.toml", "deploy/helm/kvd/Chart.yaml"):  # fmt: skip
            text = (top / file).read_text()
            found[file] = re.findall(r"^(?:project\(kvd VERSION|(?:app|__)?[vV]ersion\w*(?::| =)) \"?([\d.]+)", text, re.M)
            self.assertTrue(found[file], file)
        self.assertEqual(len({version for each in found.values() for version in each}), 1, found)

    def test_check_refuses_what_is_no_bill(self) -> None:
        bill = self.folder / "kvd.cdx.json"
        bill.write_text('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": "kvd"}]}')
        done = subprocess.run([sys.executable, PACKAGE / "sbom.py", "--check", bill], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("type", done.stderr)


if __name__ == "__main__":
    ctest.main()
