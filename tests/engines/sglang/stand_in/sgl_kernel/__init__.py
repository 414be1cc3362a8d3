"""Stands in for SGLang's kernels, which are published for GPUs only. Every name is there, so that SGLang
can be imported; whatever is called raises. With torch's own attention on a CPU SGLang calls none.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

__version__ = "0.4.10"


class Absent:
    """A kernel that is not there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self.name} is a kernel for GPUs")

    def __getattr__(self, name: str) -> Absent:
        return _absent(self.name, name)


class AbsentModule(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Absent:
        return _absent(self.__name__, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module below this one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs nothing: names are made when they are asked for."""


def _absent(owner: str, name: str) -> Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{owner}.{name}")


def __getattr__(name: str) -> Absent:
    return _absent(__name__, name)


sys.meta_path.insert(0, Finder())
