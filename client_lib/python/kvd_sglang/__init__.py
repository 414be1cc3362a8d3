"""SGLang on kvd: the pages of SGLang's hierarchical cache (HiCache) are kept in kvd's DRAM, and found
there by every other SGLang that computes the same.

    python -m kvd_sglang flags

prints the flags that switch it on.
"""

from typing import Any

TESTED_SGLANG = ("0.5.23",)


def __getattr__(name: str) -> Any:
    """The class that SGLang looks up here by its `class_name`. It imports SGLang, so it loads only
    then."""
    if name == "KvdStorage":
        from kvd_sglang.storage import KvdStorage

        return KvdStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
