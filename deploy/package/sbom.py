"""What kvd brings along of others': a bill of materials, and their licences, out of what dpkg knows.

    python3 deploy/package/sbom.py BUILD OUT.cdx.json VERSION       for the programs and libraries of a release
    python3 deploy/package/sbom.py --licences BUILD FOLDER FILE...  copies the licences of what FILEs load
    python3 deploy/package/sbom.py --check FILE                     by the schema; the Python of deploy/ci/release.sh

CycloneDX 1.6 as JSON. Source: https://cyclonedx.org/docs/1.6/json/. The same build gives the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from oci import PROGRAMS, Fault, Json, as_json, libraries

PACKAGED = [*PROGRAMS, "kvd-plan", "kvd-sim"]
LIBRARIES = ["libkvd_client.so"]


@dataclass(frozen=True)
class Package:
    """A Debian package, and the library's file in it."""

    name: str
    version: str
    architecture: str
    homepage: str
    file: Path

    @property
    def purl(self) -> str:
        version = self.version.replace("+", "%2B").replace(":", "%3A").replace("~", "%7E")
        return f"pkg:deb/debian/{self.name}@{version}?arch={self.architecture}"


@functools.cache
def owner(file: Path) -> Package:
    """Errors: Fault where no package has the file."""
    # A file may be known by its path before or after /lib became /usr/lib.
    real = str(file.resolve())
    paths = [real, real.removeprefix("/usr"), f"/usr{real}"]
    found = subprocess.run(["dpkg-query", "-S", *paths], capture_output=True, text=True, timeout=60)
    if not (hit := re.match(r"(\S+):", found.stdout)):
        raise Fault(f"no Debian package has {file}: build on Debian, without libraries from elsewhere")
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\t${Homepage}", hit[1]],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    name, version, architecture, homepage = shown.stdout.split("\t")
    return Package(name, version, architecture, homepage, file)


def loaded(build: Path, file: Path) -> list[Package]:
    """What a program or library of kvd's loads of others', glibc included."""
    brought = libraries(file, build / "lib").values()
    theirs = [each for each in brought if not each.resolve().is_relative_to(build.resolve())]
    return sorted((owner(each) for each in theirs), key=lambda each: (each.name, each.file.name))


def component(package: Package) -> Json:
    return {
        "type": "library",
        "bom-ref": f"{package.purl}#{package.file.name}",
        "name": package.file.name,
        "group": package.name,
        "version": package.version,
        "purl": package.purl,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(package.file.read_bytes()).hexdigest()}],
        **({"externalReferences": [{"type": "website", "url": package.homepage}]} if package.homepage else {}),
    }  # fmt: skip


def bill(build: Path, version: str) -> Json:
    ours = [build / "bin" / name for name in PACKAGED] + [build / "lib" / name for name in LIBRARIES]
    components: dict[str, Json] = {}
    needs: list[Json] = []
    for file in ours:
        parts = [component(each) for each in loaded(build, file)]
        components |= {part["bom-ref"]: part for part in parts}
        needs.append({"ref": file.name, "dependsOn": sorted(part["bom-ref"] for part in parts)})
    programs = [{"type": "library" if ".so" in file.name else "application", "bom-ref": file.name,
                 "name": file.name, "version": version} for file in ours]  # fmt: skip
    kvd = {"type": "application", "bom-ref": "release", "name": "kvd-release", "version": version,
           "licenses": [{"license": {"id": "Apache-2.0"}}]}  # fmt: skip
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": kvd},
        "components": programs + [components[ref] for ref in sorted(components)],
        "dependencies": [{"ref": "release", "dependsOn": sorted(file.name for file in ours)}, *needs],
    }


def copy_licences(build: Path, folder: Path, files: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for package in {each.name: each for file in files for each in loaded(build, file)}.values():
        shutil.copyfile(Path("/usr/share/doc", package.name, "copyright"), folder / package.name)


def check(file: Path) -> None:
    """Errors: Fault where it is no bill of materials."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read_text()):
        raise Fault(f"{file}: {fault}")


def main(arguments: list[str]) -> None:
    if arguments[0] == "--check":
        check(Path(arguments[1]))
        return
    if arguments[0] == "--licences":
        copy_licences(Path(arguments[1]), Path(arguments[2]), [Path(each) for each in arguments[3:]])
        return
    build, out, version = arguments
    Path(out).write_bytes(as_json(bill(Path(build), version)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Fault as fault:
        sys.exit(f"sbom.py: {fault}")
