"""Lets PyPI's torch load on a machine without CUDA's libraries, which are 2.2 GB and do nothing there.

    python3 vllm_stubs.py SITE_PACKAGES      needs gcc and readelf

torch's libraries name CUDA's as needed. For each one that is named, this makes a library in
nvidia/cu13/lib, where torch's RPATH looks, whose functions say that there is no device. For machines
without a GPU only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# The driver's own libcuda is not one of them: nothing loads it without a GPU.
CUDA = re.compile(r"lib(cu(?!da\.so)|nccl|nv)[\w]*\.so\.\d+$")
# What CUDA's functions start with. Others without a version are Python's and the C++ library's.
CALL = re.compile(r"p?nccl|cu|nv|__cuda")
Names = dict[tuple[str, str], set[str]]  # by library and version
NO_DEVICE = 100  # cudaErrorNoDevice
# number: value size type bind visibility UND name@version (index)
SYMBOL = re.compile(r"^ *\d+: \w+ +\w+ (\w+) +(\w+) +\w+ +(\S+) (\w[\w.$]*)(?:@+([\w.]+))?")


def readelf(option: str, file: Path) -> str:
    return subprocess.run(
        ["readelf", "--wide", option, str(file)], check=True, capture_output=True, text=True
    ).stdout


def versions(library: Path) -> dict[str, str]:
    """The library behind each version name of CUDA's that is asked for."""
    found: dict[str, str] = {}
    file = ""
    for line in readelf("--version-info", library).splitlines():
        if hit := re.search(r" File: (\S+)", line):
            file = hit[1]
        elif (hit := re.search(r" Name: (\S+) +Flags", line)) and CUDA.match(file):
            found[hit[1]] = file
    return found


def wanted(libraries: list[Path]) -> tuple[set[str], Names, set[str]]:
    """The CUDA libraries named, the names each of them must have, and those that are no functions.
    Names without a version, which no library of torch defines, are under ("", "")."""
    needed: set[str] = set()
    defined: set[str] = set()
    objects: set[str] = set()
    names: Names = defaultdict(set)
    for library in libraries:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", library)))
        files = versions(library)
        for line in readelf("--dyn-syms", library).splitlines():
            symbol = SYMBOL.match(line)
            if not symbol:
                continue
            kind, bind, section, name, version = symbol.groups()
            if section != "UND":
                defined.add(name)
            elif bind != "WEAK" and (version is None or version in files):
                names[files.get(version, ""), version or ""].add(name)
                if kind == "OBJECT":
                    objects.add(name)
    names["", ""] = {name for name in names["", ""] - defined if CALL.match(name)}
    return {name for name in needed if CUDA.match(name)}, names, objects


def source(names: set[str], objects: set[str]) -> str:
    lines = []
    for name in sorted(names):
        if name in objects:
            lines.append(f"char {name}[4096];")
        elif "String" in name or name.endswith("ErrorName"):
            lines.append(f'const char* {name}(void) {{ return "no CUDA here"; }}')
        else:
            lines.append(f"long {name}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines)


def build(file: Path, nodes: dict[str, set[str]], plain: set[str], objects: set[str]) -> None:
    script = file.with_suffix(".map")
    script.write_text(
        "".join(f"{node} {{ global: {'; '.join(sorted(in_it))}; }};\n" for node, in_it in nodes.items())
    )
    options = [f"-Wl,--version-script={script}"] if nodes else []
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-fno-builtin", "-w", "-x", "c", "-", "-o", str(file),
         f"-Wl,-soname,{file.name}", *options],
        input=source(plain.union(*nodes.values()), objects), text=True, check=True,
    )  # fmt: skip
    script.unlink()


def main() -> None:
    site = Path(sys.argv[1])
    folder = site / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    libraries, names, objects = wanted(sorted((site / "torch/lib").glob("*.so*")))
    runtime = next(name for name in sorted(libraries) if name.startswith("libcudart"))
    for name in sorted(libraries):
        nodes = {version: found for (file, version), found in names.items() if file == name}
        build(folder / name, nodes, names["", ""] if name == runtime else set(), objects)
    print(f"{len(libraries)} libraries in {folder}")


if __name__ == "__main__":
    main()
