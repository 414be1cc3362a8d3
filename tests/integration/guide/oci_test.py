"""The container image: what kvd needs of it that no program of kvd's names."""

import os
import sys
import unittest
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[3] / "deploy/package"))

import oci

BUILD = Path(os.environ["KVDTEST_BIN_DIR"]).parent


class Image(unittest.TestCase):
    def test_has_what_the_drivers_libcuda_asks_for(self) -> None:
        with patch.object(oci, "PROGRAMS", ["kvd", "kvdctl"]):
            layers, config = oci.kvd_image(BUILD)
        files = {path: content for _, layer in layers for path, content in layer.items()}
        for name in ("libdl.so.2", "librt.so.1", "libpthread.so.0", "libm.so.6", "libc.so.6"):
            content = files[f"usr/lib/{name}"]
            assert content is not None
            self.assertTrue(content.startswith(b"\x7fELF"), name)
        self.assertIn("NVIDIA_VISIBLE_DEVICES=all", config["Env"])
        self.assertTrue(any(each.startswith("NVIDIA_DRIVER_CAPABILITIES=compute")
                            for each in config["Env"]))  # fmt: skip


if __name__ == "__main__":
    unittest.main()
