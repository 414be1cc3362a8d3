"""Items that are run in order, each until its deadline, with a report that is whole after each of them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"
BEFORE = "before"  # begins the reason of an item that was not reached
MOST_FILES, MOST_BYTES = 8, 16 << 20
LOG_BYTES = 1 << 20  # of each log, its end

T = TypeVar("T")


class Late(Exception):
    """An item's time is over."""


@dataclass
class Criterion:
    item: str
    key: str
    text: str
    state: str = NOT_RUN
    reason: str = ""


@dataclass
class Results:
    """What one item found out. An item asks for nothing else than to say it here."""

    criteria: dict[str, Criterion]
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    fault: str = ""  # what broke it off

    def check(self, key: str, holds: bool, found: str = "") -> None:
        criterion = self.criteria[key]
        criterion.state, criterion.reason = PASS if holds else FAIL, found

    def leave(self, key: str, why: str) -> None:
        self.criteria[key].reason = why

    def figure(self, name: str, value: Any) -> None:
        self.figures[name] = value

    def undecided(self) -> list[Criterion]:
        return [each for each in self.criteria.values() if each.state == NOT_RUN and not each.reason]


@dataclass
class Item(Generic[T]):
    """`criteria`: key and text of each. `run` may be ended at any place, by Late. `refusal`: why it cannot
    be run here, "" where it can. `needed`: where it breaks off, so would all that comes after it."""

    id: str
    title: str
    seconds: int
    criteria: dict[str, str]
    run: Callable[[T, Results], None]
    refusal: Callable[[T], str] = lambda _: ""
    needed: bool = False

    def results(self) -> Results:
        return Results({key: Criterion(self.id, key, text) for key, text in self.criteria.items()})


class Deadline:
    """Raises Late in the main thread once the time is over. A context manager."""

    def __init__(self, seconds: float) -> None:
        self._seconds = max(seconds, 0.01)

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        raise Late


def conduct(item: Item[T], bench: T, seconds: float, give_up: Callable[[], None]) -> Results:
    """Runs it for its time at most. `give_up` ends what a late item was waiting for."""
    results = item.results()
    began = time.monotonic()
    why = item.refusal(bench)
    if why:
        for criterion in results.criteria.values():
            criterion.reason = why
        return results
    try:
        with Deadline(seconds):
            item.run(bench, results)
    except Late:
        results.fault = f"ended by its deadline of {seconds:.0f} s"
    except Exception as error:
        traceback.print_exc()
        results.fault = f"{type(error).__name__}: {error}"
    if results.fault:
        give_up()
    for criterion in results.undecided():
        criterion.state, criterion.reason = FAIL, results.fault or "it did not say"
    results.seconds = time.monotonic() - began
    return results


@dataclass
class Report:
    """All of it, also of what has not been run."""

    items: Sequence[Item[Any]]
    facts: dict[str, Any]
    found: dict[str, Results] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def criteria(self) -> list[Criterion]:
        return [
            criterion
            for item in self.items
            for criterion in (self.found.get(item.id) or item.results()).criteria.values()
        ]

    @property
    def passed(self) -> bool:
        return not any(each.state == FAIL for each in self.criteria())

    def document(self) -> dict[str, Any]:
        return {
            **self.facts,
            "seconds": round(time.monotonic() - self.began, 1),
            "passed": self.passed,
            "criteria": [vars(each) for each in self.criteria()],
            "items": [
                {"id": item.id, "title": item.title, "limit_s": item.seconds,
                 "seconds": round(found.seconds, 1), "figures": found.figures}
                for item in self.items if (found := self.found.get(item.id))
            ],
        }  # fmt: skip

    def markdown(self) -> str:
        document = self.document()
        lines = ["# A quarter of an hour on a GPU", ""]
        lines += [f"- {name}: {value}" for name, value in document.items() if isinstance(value, (str, int, float))]
        lines += ["", "| item | criterion | | found |", "|---|---|---|---|"]
        for each in self.criteria():
            lines.append(f"| {each.item} | {each.text} | **{each.state}** | {each.reason.replace('|', '/')} |")
        for item in document["items"]:
            lines += ["", f"## {item['id']}: {item['title']} ({item['seconds']} of {item['limit_s']} s)", ""]
            lines += [f"- {name}: {json.dumps(value)}" for name, value in item["figures"].items()]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Whole or not at all: the run may be ended at any time."""
        for name, text in (("quarter.json", json.dumps(self.document(), indent=1)), ("quarter.md", self.markdown())):
            fresh = folder / f"{name}.new"
            fresh.write_text(text)
            fresh.rename(folder / name)


def run_all(
    items: Sequence[Item[T]], chosen: Sequence[str], bench: T, report: Report, folder: Path, seconds: float,
    give_up: Callable[[], None], patience: float = 1.0,
) -> None:  # fmt: skip
    """In their order, until the time is used up. `patience`: how many times as long a slower machine may take."""
    end = report.began + seconds
    broken = ""
    report.write(folder)
    for item in items:
        left = end - time.monotonic()
        reason = ""
        if item.id not in chosen:
            reason = "not asked for"
        elif broken:
            reason = f"{BEFORE} it {broken} broke off"
        elif left < item.seconds / 3:
            reason = f"{BEFORE} it the time was used up"
        if reason:
            results = item.results()
            for criterion in results.criteria.values():
                criterion.reason = reason
        else:
            print(f"{time.monotonic() - report.began:5.0f} s  {item.id} {item.title}", flush=True)
            results = conduct(item, bench, min(item.seconds * patience, left), give_up)
            if item.needed and results.fault:
                broken = item.id
        report.found[item.id] = results
        report.write(folder)
        for criterion in results.criteria.values():
            if criterion.reason != "not asked for":
                print(f"         {criterion.state:8}{criterion.text}: {criterion.reason}", flush=True)


def not_passed(report: Path) -> list[str]:
    """The items of an earlier report of which something failed, and after them those that were not reached."""
    criteria = json.loads(report.read_text())["criteria"]
    failed = [each["item"] for each in criteria if each["state"] == FAIL]
    late = [each["item"] for each in criteria if each["reason"].startswith(BEFORE)]
    return list(dict.fromkeys(failed + late))


def machine_facts(command: Sequence[str]) -> dict[str, Any]:
    """Card, driver, command and the machine's other load."""
    card, driver = "none", "none"
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.splitlines()
        if said:
            card, _, driver = said[0].partition(", ")
    return {
        "card": card,
        "driver": driver,
        "command": " ".join(command),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }


def gather_logs(logs: Sequence[Path], out: Path) -> None:
    """The end of each, in one file."""
    with out.open("wb") as file:
        for log in logs:
            data = log.read_bytes()[-LOG_BYTES:]
            file.write(f"==== {log.name}\n".encode() + data + b"\n")
            if file.tell() > MOST_BYTES - 2 * LOG_BYTES:
                return


def check_size(folder: Path) -> None:
    """What may come back from a machine that is lent."""
    files = [each for each in folder.iterdir() if each.is_file()]
    large = [each.name for each in files if each.stat().st_size > MOST_BYTES]
    if len(files) > MOST_FILES or large:
        print(f"too much to come back: {len(files)} files, larger than 16 MiB: {large}", file=sys.stderr)
