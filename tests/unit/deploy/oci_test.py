"""The container image is what the image specification says, and kvd starts out of it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

import ctest

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ["KVDTEST_BIN_DIR"]).parent
sys.path.insert(0, str(ROOT / "deploy/package"))

import oci  # noqa: E402


class Layout(unittest.TestCase):
    """The image has two small layers. An engine would refuse each fault here, or run it wrongly."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="kvd-oci-")
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name, "image")
        oci.write_layout(self.out, [("one", {"usr/lib/a": b"a"}), ("two", {"tmp": None})],
                         {"Entrypoint": ["/a"]}, "1")  # fmt: skip

    def manifest(self) -> tuple[Path, oci.Json]:
        index = json.loads((self.out / "index.json").read_bytes())
        file = self.out / "blobs" / index["manifests"][0]["digest"].replace(":", "/")
        return file, json.loads(file.read_bytes())

    def replace(self, part: str, change: dict[str, object]) -> None:
        """Gives the configuration other fields, with digests that are right all the way up."""
        _, manifest = self.manifest()
        old = json.loads(oci.blob(self.out, manifest[part]))
        data = oci.as_json({**old, **change})
        manifest[part] |= {"digest": oci.digest(data), "size": len(data)}
        (self.out / "blobs" / oci.digest(data).replace(":", "/")).write_bytes(data)
        top = oci.as_json(manifest)
        (self.out / "blobs" / oci.digest(top).replace(":", "/")).write_bytes(top)
        index = json.loads((self.out / "index.json").read_bytes())
        index["manifests"][0] |= {"digest": oci.digest(top), "size": len(top)}
        (self.out / "index.json").write_bytes(oci.as_json(index))

    def test_is_sound_and_has_the_layers_in_order(self) -> None:
        names = []
        for tar in oci.check(self.out):
            with tarfile.open(fileobj=io.BytesIO(tar)) as entries:
                names.append([(e.name, oct(e.mode), e.uid) for e in entries])
        self.assertEqual(names, [[("usr", "0o755", 0), ("usr/lib", "0o755", 0),
                                  ("usr/lib/a", "0o644", 0)], [("tmp", "0o1777", 0)]])  # fmt: skip

    def test_a_changed_blob_is_found(self) -> None:
        for blob in list((self.out / "blobs/sha256").iterdir()):
            kept = blob.read_bytes()
            blob.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
            with self.assertRaises(oci.Fault):
                oci.check(self.out)
            blob.write_bytes(kept)
        oci.check(self.out)

    def test_wrong_diff_ids_and_history_are_found(self) -> None:
        _, manifest = self.manifest()
        image = json.loads(oci.blob(self.out, manifest["config"]))
        turned = {"type": "layers", "diff_ids": image["rootfs"]["diff_ids"][::-1]}
        for change in ({"rootfs": turned}, {"history": []}, {"os": "plan9"}):
            self.replace("config", change)
            with self.assertRaises(oci.Fault):
                oci.check(self.out)
            self.replace("config", image)
        oci.check(self.out)


class Image(unittest.TestCase):
    """The image of this build."""

    def test_is_the_same_twice_and_kvd_starts_with_its_libraries(self) -> None:
        with tempfile.TemporaryDirectory(prefix="kvd-oci-") as name:
            folder = Path(name)
            for out in ("first", "second"):
                oci.main(BUILD, folder / out, "1")
            self.assertEqual((folder / "first/index.json").read_bytes(),
                             (folder / "second/index.json").read_bytes())  # fmt: skip
            root = folder / "root"
            for tar in oci.check(folder / "first"):
                with tarfile.open(fileobj=io.BytesIO(tar)) as entries:
                    entries.extractall(root)  # noqa: S202  # our own
            loader = next(root.glob("lib*/ld-linux*"))
            for program in oci.PROGRAMS:
                run = subprocess.run(
                    [str(loader), "--inhibit-cache", "--library-path", f"{root}/usr/lib",
                     f"{root}/usr/bin/{program}", "--help"],
                    capture_output=True, text=True, timeout=60,
                    env={"LD_LIBRARY_PATH": "/nonexistent"},
                )  # fmt: skip
                self.assertNotIn("error while loading", run.stderr)
                refused = "is started by kvd" in run.stderr  # kvd-admin, by a person
                self.assertTrue(run.returncode == 0 or refused, run.stderr)


if __name__ == "__main__":
    ctest.main()
