"""python -m kvd_vllm doctor [--json]: whether this vLLM and this kvd go together.
python -m kvd_vllm flags [--model M] [--json]: the command that starts this vLLM on this kvd.

Exit codes: 0 all is well, 1 something will not work, 2 wrong usage, 3 all is well but no daemon
answers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.metadata import entry_points
from typing import Any

import kvd_client
from kvd_vllm import CONNECTOR, TESTED_VLLM, checks, flags
from kvd_vllm.checks import Finding, look

NOT_YET = (
    "blocks of models with recurrent layers (Mamba) or chunked local attention, of draft models with "
    "KV cache groups of their own, of context-parallel workers, of workers started by Ray or on several "
    "nodes, of several workers with LoRA adapters or experts that move, and of replicas that share experts: "
    "they are neither stored nor parked",
    "a KV cache that grows and shrinks (option elastic) of these, and of several workers; their KV events",
)
# docs/vllm.md says the same.
RUN_ONCE = (
    "on a GPU, an H200: vLLM 0.32.0 with its own kernels, model runner V2, FlashAttention 3, asynchronous "
    "scheduling and CUDA graphs"
)
NEVER_RUN = ("torch.compile and piecewise CUDA graphs on a GPU", "several GPUs in one vLLM")
# Engines in which all of this is equal find each other's blocks; vLLM's log and `kvdctl cache` show
# it.
IDENTITY = (
    "weights: a sample of every parameter and buffer that the worker has loaded, of a draft model too",
    "config: the model's, without names and paths; types, KV cache groups, layout, hash, ranks",
    "vLLM's minor version and the attention backend",
    "of each block: its tokens, images, prompt embeddings and cache_salt, and all of the LoRA adapter",
)
# How long to look for a kvd that was just started and does not listen yet.
_PATIENCE_S, _RETRY_S = 10.0, 0.2


# A terminal shows them green, yellow and red.
_WORDS = {"fine": "yes", "moved": "new?", "missing": "no"}
_IS_COLOURED = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
_COLOURS = dict.fromkeys(_WORDS, "")
_PLAIN = ""
if _IS_COLOURED:
    _COLOURS, _PLAIN = {"fine": "\033[32m", "moved": "\033[33m", "missing": "\033[31m"}, "\033[0m"


def _plugin() -> Finding:
    groups = entry_points(group="vllm.general_plugins")
    here = any(entry.value.startswith("kvd_vllm") for entry in groups)
    what = f"vLLM finds the name {CONNECTOR}"
    fault = "" if here else "the package is not installed: pip install kvd-vllm"
    return Finding(what, fault, "the package" if fault else "")


def _vllm() -> list[Finding]:
    try:
        with _quiet():
            return list(look())
    except ImportError as fault:
        return [Finding("vllm", f"cannot be imported: {fault}", "vLLM")]


class _quiet:
    """vLLM logs while it is imported, but standard output is for the answer."""

    def __enter__(self) -> None:
        self._stdout, sys.stdout = sys.stdout, sys.stderr

    def __exit__(self, *_: object) -> None:
        sys.stdout = self._stdout


def _session(until: float) -> kvd_client.SessionInfo:
    """The session with a kvd that listens before `until`, on time.monotonic()'s clock."""
    while True:
        try:
            try:
                client = kvd_client.Client(engine_name="doctor")
            except kvd_client.Unsupported:
                both = kvd_client.Memory.HOST | kvd_client.Memory.CUDA
                client = kvd_client.Client(engine_name="doctor", memory=both)
            with client:
                return client.session()
        except kvd_client.Unavailable:
            if time.monotonic() > until:
                raise
        time.sleep(_RETRY_S)


def _daemon(until: float) -> tuple[Finding, int, kvd_client.SessionInfo | None]:
    """Reports on the daemon. Also returns the exit code that follows, and the session."""
    what = "a kvd answers"
    try:
        session = _session(until)
    except kvd_client.KvdError as fault:
        code = 3 if isinstance(fault, kvd_client.Unavailable) else 1
        return Finding(what, f"{type(fault).__name__}: {fault}", "the daemon"), code, None
    kind = (session.memory.name or "").lower()
    return Finding(f"{what}: {kind} memory in slabs of {session.slab_bytes} bytes"), 0, session


def _trials(session: kvd_client.SessionInfo | None) -> list[Finding]:
    """What this vLLM's scheduler does on that kvd."""
    if session is None:
        return [Finding("levels 1 to 3 run", "not tried: no kvd answers; start one, and ask again")]
    try:
        with _quiet():
            from kvd_vllm.doctor import trial

            device = "cpu" if session.memory == kvd_client.Memory.HOST else "cuda"
            return list(trial.run(trial.Place(os.environ.get("KVD_ENDPOINT"), device, session.slab_bytes)))
    except Exception as fault:  # an unknown vLLM may raise anything when it is imported
        return [Finding("levels 1 to 3 run", f"not tried: {type(fault).__name__}: {fault}")]


def examine(patience_s: float) -> tuple[dict[str, Any], int]:
    until = time.monotonic() + patience_s
    findings = [_plugin(), *_vllm()]
    daemon, code, session = _daemon(until)
    if not any(finding.off in ("vLLM", checks.MEMORY) for finding in findings):
        findings += _trials(session)
    report = {
        "tested_vllm": list(TESTED_VLLM),
        "findings": [finding._asdict() for finding in [*findings, daemon]],
        "identity": list(IDENTITY),
        "not_yet": list(NOT_YET),
        "run_once": RUN_ONCE,
        "never_run": list(NEVER_RUN),
    }
    return report, 1 if any(finding.off for finding in findings) else code


def _say_doctor(given: argparse.Namespace) -> int:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    report, status = examine(given.wait)
    if given.json:
        print(json.dumps(report))
        return status
    for finding in report["findings"]:
        kind = "fine" if not finding["fault"] else "missing" if finding["off"] else "moved"
        print(f"{_COLOURS[kind]}{_WORDS[kind]:4}{_PLAIN}  {finding['what']}")
        if finding["fault"]:
            off = f"; off in this vLLM: {finding['off']}" if finding["off"] in checks.NEEDED else ""
            print(f"      {finding['fault']}{off}")
    print("\nblocks are named by:")
    for line in report["identity"]:
        print(f"  {line}")
    print(f"\ntested with vLLM {', '.join(TESTED_VLLM)}; not in this version:")
    for line in NOT_YET:
        print(f"  {line}")
    print(f"run once: {RUN_ONCE}")
    print(f"never run: {', '.join(NEVER_RUN)}")
    return status


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _say_flags(given: argparse.Namespace) -> int:
    endpoint = os.environ.get("KVD_ENDPOINT")
    try:
        session = _session(time.monotonic() + given.wait)
        with _quiet():
            gpu = flags.gpu_of(session)
            is_async = flags.schedules_async(given.model, gpu)
        found = flags.flags_for(gpu, flags.pool_of(session), is_async, given.engines)
    except kvd_client.Unavailable as fault:
        print(f"no kvd answers: {fault}", file=sys.stderr)
        return 3
    except (kvd_client.KvdError, flags.NoFlags, ImportError) as fault:
        print(f"{fault}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps({"flags": [flag._asdict() for flag in found]}))
        return 0
    print(flags.command(given.model or "MODEL", found, endpoint))
    print()
    for flag in found:
        print(f"# {flag.name}: {flag.why}")
    if not any(flag.name == "--kv-cache-memory-bytes" for flag in found):
        print("# --kv-cache-memory-bytes N: give one; kvd's admin interface did not say what is free (KVD_ADMIN_URL)")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvd_vllm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="look at vLLM, this package and the daemon")
    doctor.set_defaults(say=_say_doctor)
    right = commands.add_parser("flags", help="print the command that starts this vLLM on this kvd")
    right.set_defaults(say=_say_flags)
    right.add_argument("--model", metavar="M", help="as vLLM takes it; it decides how vLLM schedules")
    right.add_argument("--engines", type=_count, default=1, metavar="N", help="that are to share the pool and the GPU")
    for each in (doctor, right):
        each.add_argument("--json", action="store_true", help="one JSON object")
        each.add_argument("--wait", type=float, default=_PATIENCE_S, metavar="SECONDS",
                          help="for a kvd that has just been started (default: %(default)s)")  # fmt: skip
    given = parser.parse_args(arguments)
    status: int = given.say(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
