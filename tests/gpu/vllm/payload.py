"""Packs vLLM for one architecture: payload.py WHEELS REQUIREMENTS OUT.tar.xz

A fat binary holds a kernel once for each architecture. What is not for this one is zeroed in place, so
that no address moves, and takes nothing once it is packed.
"""

from __future__ import annotations

import io
import lzma
import re
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ARCHITECTURE = 90  # H100, H200, GH200
MOST_BYTES = 50_000_000
# The objects that are kept, and those of which only some kernels are: by what their name says.
KERNELS = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "cumem_allocator", "spinloop", "_vllm_fa3_C")
ATTENTION = "_vllm_fa3_C"
HEAD, NUMBER = b"128", b"bfloat16_t"
# Other programs, sources of kernels, and pages of a browser.
LEFT_OUT = re.compile(
    r"vllm/(vllm-rs|third_party/deep_gemm/|third_party/fmha_sm100/cutlass/"
    r"|entrypoints/serve/instrumentator/static/)|.*/tests?/|.*\.pyi$"
)
FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
FATBIN_MAGIC, CUBIN = 0xBA55ED50, 2
# How the main loop of a FlashAttention 3 kernel is called, with its head size and its number type.
MAIN_LOOP = re.compile(
    rb"CollectiveMainloopFwdSm90I.{0,200}?ELi(\d+)ENS_(?:1\d(bfloat16_t|float_e4m3_t|half_t)|6(half_t))"
)


class Part(NamedTuple):
    """One kernel image of a fat binary."""

    begin: int
    end: int
    kind: int
    architecture: int


def fatbin_sections(data: bytearray) -> Iterator[tuple[int, int]]:
    """Offset and size of each section of an ELF file that holds fat binaries."""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", data, table + at * size) for at in range(count)]
    strings = rows[names][4]
    for name, _, _, _, offset, length in rows:
        begin = strings + name
        if data[begin : data.index(0, begin)].decode() in FATBIN_SECTIONS:
            yield offset, length


def parts(data: bytearray) -> Iterator[Part]:
    for offset, length in fatbin_sections(data):
        at = offset
        while at + 16 <= offset + length:
            magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
            if magic != FATBIN_MAGIC:
                at += 8
                continue
            yield from parts_of(data, at + header, at + header + size)
            at = (at + header + size + 7) // 8 * 8


def parts_of(data: bytearray, at: int, end: int) -> Iterator[Part]:
    """The images of one fat binary."""
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        if header == 0:
            return
        yield Part(at + header, at + header + size, kind, struct.unpack_from("<I", data, at + 28)[0])
        at += header + size


def is_wanted(part: Part, image: bytes, attention: bool) -> bool:
    if part.kind != CUBIN or part.architecture != ARCHITECTURE:
        return False
    found = {(head, one or other) for head, one, other in MAIN_LOOP.findall(image)} if attention else set()
    return not found or (HEAD, NUMBER) in found


def pruned(name: str, data: bytearray) -> bytes:
    """The object without what this architecture does not run."""
    kept = 0
    for part in parts(data):
        if is_wanted(part, bytes(data[part.begin : part.end]), ATTENTION in name):
            kept += 1
        else:
            data[part.begin : part.end] = bytes(part.end - part.begin)
    print(f"{name}: {kept} kernel images kept")
    return bytes(data)


def is_left_out(name: str) -> bool:
    if name.startswith("vllm/") and ".so" in name:
        return not any(f"/{kernel}." in name for kernel in KERNELS)
    return bool(LEFT_OUT.match(name))


def files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            # A wheel says so of what belongs into site-packages: NAME.data/purelib/…
            name = re.sub(r"^[^/]+\.data/(?:purelib|platlib)/", "", entry.filename)
            if entry.is_dir() or ".data/" in name or is_left_out(name):
                continue
            data = archive.read(entry)
            is_kernel = name.startswith("vllm/") and name.endswith(".so")
            yield name, pruned(name, bytearray(data)) if is_kernel else data


def wheels(folder: Path, requirements: Path) -> list[Path]:
    """The one that is pinned of each package."""
    found = []
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", requirements.read_text(), re.MULTILINE):
        pattern = re.compile(re.sub(r"[-_.]+", "[-_.]+", name) + f"-{re.escape(version)}-", re.IGNORECASE)
        found.append(next(path for path in sorted(folder.iterdir()) if pattern.match(path.name)))
    return found


def pack(folder: Path, requirements: Path, out: Path) -> None:
    """The same bytes each time."""
    entries = sorted(entry for wheel in wheels(folder, requirements) for entry in files(wheel))
    with lzma.open(out, "wb", preset=6) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for name, data in entries:
            info = tarfile.TarInfo(f"site/{name}")
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    size = out.stat().st_size
    print(f"{len(entries)} files, {sum(len(data) for _, data in entries) / 1e6:.0f} MB, packed {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        sys.exit(f"{size} bytes are more than the {MOST_BYTES} that go along with kvd in one upload of 64 MiB")


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
