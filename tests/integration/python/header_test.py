"""What kvd_client declares is what kvd.h says: a slip there is a wrong argument, not an error."""

from __future__ import annotations

import ctypes
import re
import unittest
from pathlib import Path

import ctest
from kvd_client import HoldReason, RunFlag, Status, _abi, errors

HEADER = (Path(__file__).parents[3] / "client_lib/include/kvd.h").read_text()
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)


def constants(prefix: str) -> dict[str, int]:
    found = re.findall(rf"{prefix}(\w+)(?: =)? (\d+)u?\b", CODE)
    return {name: int(value) for name, value in found}


def fields_of(struct: str) -> list[str]:
    body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", CODE, re.S)
    assert body is not None, struct
    return re.findall(r"(\w+)(?:\[\d+\]|\)\([^)]*\))?;", body[1])


class Header(unittest.TestCase):
    def test_names_the_same_codes(self) -> None:
        enum = re.search(r"typedef enum kvd_status \{(.*?)\}", CODE, re.S)
        assert enum is not None
        found = {name: int(value) for name, value in re.findall(r"KVD_(\w+) = (\d+)", enum[1])}
        self.assertEqual(found, {status.name: status.value for status in Status})

    def test_has_an_error_class_for_each_code(self) -> None:
        for status in Status:
            if status != Status.OK:
                self.assertEqual(errors.error_of(status, "why").status, status)
        self.assertIn("999", str(errors.error_of(999, "why")))

    def test_names_the_same_flags_and_reasons(self) -> None:
        self.assertEqual(constants("KVD_RUN_"), {flag.name: flag.value for flag in RunFlag})
        self.assertEqual(constants("KVD_HOLD_"), {each.name: each.value for each in HoldReason})

    def test_has_the_same_structs(self) -> None:
        """A struct with its size in front, or one that only kvd writes, may be longer there."""
        for name, struct in vars(_abi).items():
            if isinstance(struct, type) and issubclass(struct, ctypes.Structure):
                in_c = "kvd_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
                if "_fields_" not in vars(struct):
                    continue
                ours = [field[0] for field in struct._fields_]
                theirs = fields_of(in_c)
                self.assertEqual(ours, theirs[: len(ours)], in_c)
                if ours[0] != "struct_size":
                    self.assertEqual(ours, theirs, in_c)

    def test_has_functions_with_as_many_arguments(self) -> None:
        for name, arguments in _abi._CALLS.items():
            found = re.search(rf"KVD_API kvd_status {name}\((.*?)\);", CODE, re.S)
            assert found is not None, name
            self.assertEqual(len(found[1].split(",")), len(arguments), name)


if __name__ == "__main__":
    ctest.main()
