"""Names that users' programs, dashboards and files say: metrics, keys, REST. What a release had stays.

    KVDTEST_FREEZE=1 ctest --preset release -R frozen.interface

writes what is new into the golden files beside this one, as each release does; until then what is new may still change.
It takes nothing out of them: that asks for another version in CMakeLists.txt than the first line of the file has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import ctest
from kvd_process import KvdProcess, poll_until

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BINARIES = os.environ["KVDTEST_BIN_DIR"]
FREEZE = "KVDTEST_FREEZE" in os.environ
VERSION = re.search(r"VERSION (\d+\.\d+)\.\d+", (ROOT / "CMakeLists.txt").read_text())[1]  # type: ignore[index]
BROKEN = """
These are frozen in {}, and kvd has them no more, or otherwise: what users wrote against them breaks.
Put them back, or take a new name and keep the old one. A release that breaks them on purpose gets its version in
CMakeLists.txt and a line in CHANGELOG.md first; then KVDTEST_FREEZE=1 writes the file anew."""


def tell_of(new: object, file: Path) -> None:
    if new:
        print(f"not frozen yet: {new}; with KVDTEST_FREEZE=1 this test adds it to {file.name}", file=sys.stderr)


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def metrics() -> list[str]:
    """`name type labels`; the row of a dashboard and the help may change."""
    lines = [line.split("\t") for line in output(f"{BINARIES}/kvd-metric-list").splitlines()]
    return sorted(" ".join([name, kind, labels]).rstrip() for name, kind, _, labels, *_ in lines)


def rest() -> list[str]:
    """The description, one fact a line: a path and what it answers, a field and its type, a word that it may be."""
    description = json.loads((ROOT / "kvd/admin/openapi.json").read_text())
    lines = [f"{operation.upper()} {path} {has['$ref'].rpartition('/')[2]}"
             for path, operations in description["paths"].items()
             for operation, of in operations.items() if operation in ("get", "patch", "delete", "put", "post")
             for has in schemas_of(of)]  # fmt: skip

    def walk(at: str, schema: Any, mark: str = "") -> None:
        if "$ref" in schema:
            lines.append(f"{at}: {schema['$ref'].removeprefix('#/components/schemas/')}{mark}")
            return
        types = schema.get("type", "any")
        lines.append(f"{at}: {'|'.join(types) if isinstance(types, list) else types}{mark}")
        lines.extend(f"{at} = {word}" for word in schema.get("enum", []))
        for name, field in schema.get("properties", {}).items():
            walk(f"{at}.{name}", field, " always" if name in schema.get("required", []) else "")
        if "items" in schema:
            walk(f"{at}[]", schema["items"])
        if isinstance(schema.get("additionalProperties"), dict):
            walk(f"{at}.*", schema["additionalProperties"])
        for each in schema.get("oneOf", []):
            walk(f"{at} either", each)

    for name, schema in description["components"]["schemas"].items():
        walk(name, schema)
    return sorted(set(lines))


def schemas_of(node: Any) -> list[Any]:
    """The schemas that an operation takes and answers."""
    if isinstance(node, dict):
        own = [node["schema"]] if "$ref" in node.get("schema", {}) else []
        return own + [each for value in node.values() for each in schemas_of(value)]
    return [each for value in node for each in schemas_of(value)] if isinstance(node, list) else []


class Names(unittest.TestCase):
    def expect_frozen(self, file: Path, now: list[str]) -> None:
        mark = f"# Frozen in {VERSION}; interface_test.py says how it changes."
        old = file.read_text().splitlines() if file.exists() else [""]
        first, frozen = old[0], [line for line in old if not line.startswith("#")]
        if FREEZE:
            frozen = sorted({*frozen, *now}) if first == mark else now
            file.write_text("\n".join([mark, *frozen]) + "\n")
        lost, added = sorted({*frozen} - {*now}), sorted({*now} - {*frozen})
        self.assertEqual(lost, [], BROKEN.format(file.name))
        tell_of(added, file)

    def test_metrics_keep_their_names_and_labels(self) -> None:
        self.expect_frozen(HERE / "metrics.txt", metrics())

    def test_rest_keeps_what_it_describes(self) -> None:
        self.expect_frozen(HERE / "rest.txt", rest())


class Configuration(unittest.TestCase):
    """A file of a release, with every key and table that it had, is read by this kvd as it was."""

    FILE = HERE / "kvd.toml"
    # Beside what the file of the packages has.
    SLO = '[slo.batch]\nttft = "1m"\ntbt = "500ms"\ntpot = "400ms"\ngap = "2s"\n'
    DEVICE = '[[device]]\ngpu = "1"\n'
    DOMAIN = '[[domain]]\nname = "lab"\nuids = [1000]\ngids = [1001]\nhbm_guarantee = "64MiB"\nper_user = false\n'

    def printed(self, file: Path) -> str:
        bare = {key: value for key, value in os.environ.items() if not key.startswith("KVD_")}
        run = subprocess.run([f"{BINARIES}/kvd", "--config", str(file), "--print-config"], env=bare,
                             capture_output=True, text=True, timeout=60)  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stderr + BROKEN.format(file.name))
        return run.stdout

    def test_is_read_as_it_was(self) -> None:
        mark = f"# Frozen in {VERSION}; interface_test.py says how it changes."
        old = self.FILE.read_text() if self.FILE.exists() else ""
        lost, added = set[str](), set[str]()
        if old:
            before, now = ({*keys_of(text)} for text in (old, self.printed(self.FILE)))
            lost, added = before - now, now - before
        if FREEZE and not (lost and old.startswith(mark)):
            folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvd-frozen-"))
            source = Path(folder, "kvd.toml")
            shipped = (ROOT / "deploy/config/kvd.toml").read_text().replace('"auto"', '"host"', 1)
            shipped = shipped.replace("\n[[device]]\n", f"\n{self.SLO}{self.DEVICE}[[device]]\n")
            source.write_text(shipped.replace("\n[[domain]]\n", f"\n{self.DOMAIN}[[domain]]\n"))
            self.FILE.write_text(f"{mark}\n{self.printed(source)}")
            added = set()
        self.assertEqual(lost, set(), BROKEN.format(self.FILE.name))
        tell_of(added, self.FILE)


def keys_of(text: str) -> list[tuple[str, str]]:
    """A line `key = value` with the table, or the element of a list of tables, that it stands in."""
    found, table, number = [], "", 0
    for line in text.splitlines():
        if line.startswith("["):
            table, number = line, number + 1 if line == table else 0
        elif " = " in line and not line.startswith("#"):
            found.append((f"{table}{number}", line))
    return found


class Answers(unittest.TestCase):
    """An answer of each path, as programs have read it; what is asked in a body is still taken."""

    FILE = HERE / "answers.json"
    # A drain of the node is last: nothing is in service after it.
    CHANGES = {
        "PATCH /v1/policy": {"rotation": {"policy": "lvf", "alpha": 2.0}},
        "PATCH /v1/slo": {"classes": {"batch": {"ttft_s": 30.0, "tbt_s": 0.5, "gap_s": "auto"}}},
        "PATCH /v1/quotas": {"domains": {"default": {"hbm": {"maximum_bytes": 8 << 20}}}},
        "DELETE /v1/cache": None,
        "PATCH /v1/drain": {"engines": {"1": {"deadline_s": 60}}, "node": {"deadline_s": None}},
    }

    def setUp(self) -> None:
        self.kvd = self.enterContext(KvdProcess())
        engine = subprocess.Popen(
            [f"{BINARIES}/kvd-pattern", "--endpoint", self.kvd.endpoint, "--name", "load", "--requests", "8",
             "--new", "4000", "--step-ms", "100", "--deadline", "900", "--json"], stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        self.assertTrue(poll_until(lambda: len(self.kvd.get("/v1/requests")["requests"]) == 8))

    def ask(self, operation: str, body: Any = None) -> Any:
        method, path = operation.split()
        headers = {"Authorization": f"Bearer {self.kvd.token}", "Content-Type": "application/merge-patch+json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.kvd.port}{path}", headers=headers, method=method,
                                         data=None if body is None else json.dumps(body).encode())  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return {"status": answer.status, "body": json.load(answer)}
        except urllib.error.HTTPError as refused:
            return {"status": refused.code, "body": json.load(refused)}

    def test_hold_what_they_held(self) -> None:
        paths = json.loads((ROOT / "kvd/admin/openapi.json").read_text())["paths"]
        reads = [f"GET {path}" for path in sorted(paths) if path != "/openapi.json"]
        frozen = json.loads(self.FILE.read_text()) if self.FILE.exists() else []
        if FREEZE:
            asked = {name: self.CHANGES.get(name) for name in [*reads, "GET /v1/unheard-of", *self.CHANGES]}
            there = {each["ask"] for each in frozen}
            added = [{"ask": name, "send": body, **first_of_each(self.ask(name, body))}
                     for name, body in asked.items() if name not in there]  # fmt: skip
            self.FILE.write_text(json.dumps(added + frozen, indent=1) + "\n")
            return
        tell_of({*reads} - {each["ask"] for each in frozen}, self.FILE)
        for each in frozen:
            lost: list[str] = []

            def holds() -> bool:
                now = self.ask(each["ask"], each["send"])  # noqa: B023
                lost[:] = missing(each["body"], now["body"])  # noqa: B023
                return not lost and now["status"] == each["status"]  # noqa: B023

            with self.subTest(each["ask"]):
                held = poll_until(holds, patience=10)
                self.assertTrue(held, f"{lost}{BROKEN.format(self.FILE.name)}")


def first_of_each(value: Any) -> Any:
    """With one element of each list: the first."""
    if isinstance(value, dict):  # what is asked of a policy lacks each field that has its default
        return {key: [] if key == "snapshots" else first_of_each(each) for key, each in value.items()}
    return [first_of_each(each) for each in value[:1]] if isinstance(value, list) else value


def missing(frozen: Any, now: Any, at: str = "") -> list[str]:
    """Where `now` lacks a field of `frozen`, or has another type there."""
    if isinstance(frozen, dict) and isinstance(now, dict):
        return [line for key, value in frozen.items()
                for line in (missing(value, now[key], f"{at}.{key}") if key in now else [f"{at}.{key} is gone"])]  # fmt: skip
    if isinstance(frozen, list) and isinstance(now, list):
        if not frozen:
            return []
        tries = [missing(frozen[0], each, f"{at}[]") for each in now]
        return min(tries, key=len, default=[f"{at} is empty"])
    kinds = [type(each) if not isinstance(each, int | float) or isinstance(each, bool) else float for each in (frozen, now)]
    same = frozen is None or kinds[0] is kinds[1]
    return [] if same else [f"{at} is {json.dumps(now)}, and was {json.dumps(frozen)}"]


if __name__ == "__main__":
    ctest.main()
