"""The measurements as text, for a terminal of a hundred and some columns."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_FLOOR = "memcpy"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "?")
    cores = sum(line.startswith("processor") for line in lines)
    return f"{model}, {cores} cores, Linux {platform.release()}"


def text(about: dict[str, Any], rows: Sequence[Row]) -> str:
    head = [
        about["machine"],
        f"every process on core {','.join(map(str, about['cores']))}; {about['rounds']} rounds, "
        f"{about['seconds']} s; load average {about['load_average'][0]} before, "
        f"{about['load_average'][1]} after",
    ]
    parts = [head, *_speed(rows), _memory(rows), _failures(rows), _missing(rows)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _speed(rows: Sequence[Row]) -> list[list[str]]:
    timed = [row for row in rows if "us" in row]
    works = list(dict.fromkeys(_work(row) for row in timed))
    systems = list(dict.fromkeys(row["system"] for row in timed))
    head = (
        f"{'work':31} {'system':12} {'GB/s':>6} {'of memcpy':>9} "
        f"{'p50 us':>9} {'p99 us':>9} {'least us':>9}"
    )
    lines = [head]
    for work in works:
        for system in systems:
            mine = [row for row in timed if _work(row) == work and row["system"] == system]
            if mine:
                lines.append(_line(work, system, mine, _ratio(work, system, timed)))
    return [lines] if works else []


def _line(work: str, system: str, mine: Sequence[Row], ratio: str) -> str:
    times = sorted(time for row in mine for time in row["us"])
    p50, p99 = statistics.median(times), times[min(len(times) - 1, len(times) * 99 // 100)]
    rate = f"{_bytes(mine[0]) / p50 / 1e3:6.2f}" if _bytes(mine[0]) else ""
    return (
        f"{work:31} {system:12} {rate:>6} {ratio:>9} {p50:9,.0f} {p99:9,.0f} {times[0]:9,.0f}"
    )


def _ratio(work: str, system: str, timed: Sequence[Row]) -> str:
    """The median over rounds of the ratio of each round's medians."""
    medians = {
        (row["system"], row["round"]): statistics.median(row["us"])
        for row in timed if _work(row) == work
    }  # fmt: skip
    rounds = {number for _, number in medians}
    ratios = [
        medians[_FLOOR, number] / medians[system, number]
        for number in rounds if (_FLOOR, number) in medians and (system, number) in medians
    ]  # fmt: skip
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def _work(row: Row) -> str:
    if "block" not in row:
        return str(row["row"])
    size = row["block"]
    block = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
    return f"{row['row']} {row['batch']} x {block}"


def _bytes(row: Row) -> int:
    return int(row.get("block", 0) * row.get("batch", 0))


def _memory(rows: Sequence[Row]) -> list[str]:
    found = [row for row in rows if row["row"] == "memory an entry"]
    return [
        f"{'memory an entry':31} {system:12} "
        f"{statistics.median(row['bytes'] for row in found if row['system'] == system):,.0f} bytes"
        for system in dict.fromkeys(row["system"] for row in found)
    ]


def _failures(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        said = _outcome(row)
        if said:
            lines.append(f"{row['row']:31} {row['system']:12} {said}")
    killed = [row for row in rows if row["row"] == "server killed" and "call" in row]
    for system in dict.fromkeys(row["system"] for row in killed):
        longest = {
            call: max(row["s"] for row in killed if (row["system"], row["call"]) == (system, call))
            for call in dict.fromkeys(row["call"] for row in killed if row["system"] == system)
        }
        told = ", ".join(f"{call} {seconds:.3f} s" for call, seconds in longest.items())
        lines.append(f"{'server killed':31} {system:12} a call fails after, at most: {told}")
    return sorted(lines, key=lambda line: line[:31])


def _outcome(row: Row) -> str:
    if "failed" in row:
        return ""
    match row["row"]:
        case "storer killed":
            return (
                f"false yes for {row['false_yes_s']:.1f} s; {row['right']} of {row['of']} loaded, "
                f"{row['wrong']} with wrong bytes"
            )
        case "killed while it stores":
            return (
                f"of the last blocks {row['right']} loaded, {row['refused']} said to be there and "
                f"not loaded, {row['wrong']} with wrong bytes"
            )
        case "server restarted":
            return (
                f"serves after {row['back_s']:.1f} s; {row['right']} of {row['of']} found, "
                f"{row['wrong']} with wrong bytes"
            )
        case "pressure" | "pressure, kept":
            return (
                f"{row['acknowledged']} of {row['asked']} acknowledged, {row['refused']} refused; "
                f"of those acknowledged {row['gone']} gone, {row['wrong']} with wrong bytes"
            )
    return ""


def _missing(rows: Sequence[Row]) -> list[str]:
    return [
        f"did not run: {row['system']}, {row['role']}: {str(row['failed']).splitlines()[-1]}"
        for row in rows if "failed" in row
    ]  # fmt: skip
