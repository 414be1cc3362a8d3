"""Lays out a container image of kvd without a container engine: an OCI image layout, as a folder.

    python3 deploy/package/oci.py BUILD OUT VERSION

The image holds kvd, its tools and every shared library they need, glibc and its loader included, and
nothing else: no shell. Two layers: the libraries, and kvd. The same build gives the same bytes.
Source: OCI Image Format Specification 1.1.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Files = dict[str, bytes | None]  # path without a leading slash: content, or None for a folder

PROGRAMS = ["kvd", "kvd-admin", "kvd-holder", "kvdctl", "kvd-pattern", "kvd-engine"]
# The NVIDIA driver's libcuda asks for these, which no program here names. Of glibc, so of its version.
FOR_LIBCUDA = ["libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CREATED = "1970-01-01T00:00:00Z"  # so that the same build is the same image


class Fault(Exception):
    """The sentence says what to do."""


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def as_json(value: Json) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


def layer_tar(files: Files) -> bytes:
    """Uncompressed; root's, in order, with the folders above each file."""
    paths = {str(parent) for path in files for parent in Path(path).parents if str(parent) != "."}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(paths | set(files)):
            content = files.get(path)
            entry = tarfile.TarInfo(path)
            if content is None:
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o1777 if path == "tmp" else 0o755
                tar.addfile(entry)
            else:
                entry.size = len(content)
                entry.mode = 0o755 if content.startswith(b"\x7fELF") else 0o644
                tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def write_layout(out: Path, layers: list[tuple[str, Files]], config: Json, version: str) -> None:
    """`config`: the container's (Entrypoint and so on). `layers`: what made each, and its files."""
    store = out / "blobs/sha256"
    store.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> Json:
        name = digest(data)
        (store / name.removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": media_type, "digest": name, "size": len(data)}

    tars = [layer_tar(files) for _, files in layers]
    image = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "created": CREATED,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(tar) for tar in tars]},
        "history": [{"created": CREATED, "created_by": made} for made, _ in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": put(as_json(image), CONFIG),
        "layers": [put(gzip.compress(tar, 6, mtime=0), LAYER) for tar in tars],
        "annotations": {"org.opencontainers.image.version": version},
    }
    entry = put(as_json(manifest), MANIFEST)
    entry["platform"] = {"architecture": image["architecture"], "os": "linux"}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (out / "oci-layout").write_bytes(as_json({"imageLayoutVersion": "1.0.0"}))
    (out / "index.json").write_bytes(
        as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    )


def stripped(file: Path) -> bytes:
    with tempfile.NamedTemporaryFile() as copy:
        subprocess.run(["strip", "-g", "-o", copy.name, str(file)], check=True, timeout=60)
        return Path(copy.name).read_bytes()


def libraries(program: Path, folder: Path) -> dict[str, Path]:
    """What the loader brings in, by the path it is to have in the image."""
    run = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True,
                         timeout=60, env={"LD_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin"})  # fmt: skip
    found: dict[str, Path] = {}
    for line in run.stdout.splitlines():
        if hit := re.match(r"\s+(\S+) => (/\S+)", line):
            found[f"usr/lib/{hit[1]}"] = Path(hit[2])
        elif hit := re.match(r"\s+(/\S+ld-linux\S+)", line):
            found[hit[1].lstrip("/")] = Path(hit[1])
        elif "not found" in line:
            raise Fault(f"{program} needs {line.split()[0]}, which is not there")
    return found


def kvd_image(build: Path) -> tuple[list[tuple[str, Files]], Json]:
    programs: Files = {}
    brought: dict[str, Path] = {}
    for name in PROGRAMS:
        file = build / "bin" / name
        if not file.exists():
            raise Fault(f"{file} is missing: build it first")
        programs[f"usr/bin/{name}"] = stripped(file)
        brought |= libraries(file, build / "lib")
    glibc = brought["usr/lib/libc.so.6"].parent
    parts = {f"usr/lib/{name}": glibc / name for name in FOR_LIBCUDA if (glibc / name).exists()}
    brought = parts | brought
    ours: Files = {path: stripped(file) for path, file in brought.items()
                   if file.resolve().is_relative_to(build.resolve())}  # fmt: skip
    theirs: Files = {path: file.read_bytes() for path, file in brought.items() if path not in ours}
    system: Files = {
        "etc/passwd": b"root:x:0:0:root:/:/\nnobody:x:65534:65534:nobody:/:/\n",
        "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
        "etc/debian_version": b"12\n",  # NVIDIA's toolkit puts libcuda where Debian's loader looks
        "etc/kvd/kvd.toml": (Path(__file__).parents[1] / "config/kvd.toml").read_bytes(),
        "usr/share/doc/kvd/LICENSE": (Path(__file__).parents[2] / "LICENSE").read_bytes(),
        "run/kvd": None,
        "tmp": None,
        "proc": None,
        "sys": None,
        "dev": None,
    }
    config = {
        "Entrypoint": ["/usr/bin/kvd", "--config", "/etc/kvd/kvd.toml"],
        "Env": [
            "PATH=/usr/bin",
            "LC_ALL=C.UTF-8",
            "KVD_PATHS_RUNTIME_DIR=/run/kvd",
            # Where NVIDIA's runtime starts the container it brings its driver in.
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ],
        "WorkingDir": "/",
        "Volumes": {"/run/kvd": {}},
        "StopSignal": "SIGTERM",
    }
    return [("libraries of Debian 12", theirs), ("kvd", programs | ours | system)], config


def blob(layout: Path, entry: Json) -> bytes:
    """The bytes of a descriptor. Errors: Fault where they are not what it says."""
    data: bytes = (layout / "blobs" / entry["digest"].replace(":", "/")).read_bytes()
    if digest(data) != entry["digest"] or len(data) != entry["size"]:
        raise Fault(f"the blob {entry['digest']} is not what its descriptor says")
    return data


def check(layout: Path) -> list[bytes]:
    """Reads a layout as a container engine would; returns the layers' tars, the lowest first.

    Errors: Fault for what the image specification does not allow.
    """
    if json.loads((layout / "oci-layout").read_bytes())["imageLayoutVersion"] != "1.0.0":
        raise Fault("the layout's version is not 1.0.0")
    index = json.loads((layout / "index.json").read_bytes())
    manifest = json.loads(blob(layout, index["manifests"][0]))
    if (manifest["schemaVersion"], manifest["mediaType"]) != (2, MANIFEST):
        raise Fault("the manifest has another schema version or media type")
    if manifest["config"]["mediaType"] != CONFIG:
        raise Fault("the configuration has another media type")
    image = json.loads(blob(layout, manifest["config"]))
    tars = []
    for entry in manifest["layers"]:
        if entry["mediaType"] != LAYER:
            raise Fault("a layer has another media type")
        tars.append(gzip.decompress(blob(layout, entry)))
    if image["rootfs"] != {"type": "layers", "diff_ids": [digest(tar) for tar in tars]}:
        raise Fault("rootfs.diff_ids are not the digests of the layers as tars")
    made = [entry for entry in image["history"] if not entry.get("empty_layer")]
    if image["os"] != "linux" or "architecture" not in image or len(made) != len(tars):
        raise Fault("os, architecture or history do not fit the layers")
    for tar in tars:
        with tarfile.open(fileobj=io.BytesIO(tar)) as entries:
            names = [entry.name for entry in entries]
        if any(name.startswith("/") or ".." in Path(name).parts for name in names):
            raise Fault("a layer leaves its root")
    return tars


def main(build: Path, out: Path, version: str) -> None:
    layers, config = kvd_image(build)
    write_layout(out, layers, config, version)
    size = sum(len(tar) for tar in check(out)) >> 20
    print(f"{out} ({size} MiB unpacked)")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except Fault as fault:
        sys.exit(f"oci.py: {fault}")
